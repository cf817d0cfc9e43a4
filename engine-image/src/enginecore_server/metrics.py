"""Prometheus metrics of one server, read from its books at every scrape.

`vllm:*` names with labels model_name and engine where the meaning is vLLM's, and
`enginecore_server_*` for the rest.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from enginecore_server.state import ServerState
from enginecore_server.tally import Distribution

_LABELS = ("model_name", "engine")


class ServerCollector(Collector):
    """Makes metric families from the server's state.

    Args:
        state: the books.
        registry: where to register.
    """

    def __init__(self, state: ServerState, registry: CollectorRegistry) -> None:
        self._state = state
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield every family once."""
        yield from self._engine_load()
        yield from self._requests()
        yield from self._latencies()
        yield from self._server()

    def describe(self) -> list[Metric]:
        """Name nothing in advance: registering must not read the books."""
        return []

    @property
    def _labels(self) -> list[str]:
        return [self._state.served_name, str(self._state.config.rank)]

    def _engine_load(self) -> Iterator[Metric]:
        stats = self._state.load.current(self._state.in_flight)
        for name, text, value in (
            ("num_requests_running", "Requests in the running batch.", stats.num_running_reqs),
            ("num_requests_waiting", "Requests that wait to run.", stats.num_waiting_reqs),
            ("kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", stats.kv_cache_usage),
        ):
            gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=_LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        asleep = GaugeMetricFamily(
            "vllm:engine_sleep_state",
            "1 for what the engine's sleep is like.",
            labels=(*_LABELS, "sleep_state"),
        )
        for state, holds in self._state.sleep.states().items():
            asleep.add_metric([*self._labels, state], float(holds))
        yield asleep

    def _requests(self) -> Iterator[Metric]:
        tally = self._state.tally
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens processed.", tally.prompt_tokens),
            ("generation_tokens", "Tokens generated.", tally.generation_tokens),
            ("prefix_cache_queries", "Tokens looked up in the cache.", tally.prefix_queries),
            ("prefix_cache_hits", "Tokens found in the cache.", tally.prefix_hits),
            ("num_preemptions", "Times a request lost its place.", tally.preemptions),
        ):
            counter = CounterMetricFamily(f"vllm:{name}", text, labels=_LABELS)
            counter.add_metric(self._labels, value)
            yield counter
        finished = CounterMetricFamily(
            "vllm:request_success",
            "Requests that ended, by reason.",
            labels=(*_LABELS, "finished_reason"),
        )
        for reason, count in tally.finished.items():
            finished.add_metric([*self._labels, reason], count)
        yield finished

    def _latencies(self) -> Iterator[Metric]:
        tally = self._state.tally
        for name, text, values in (
            ("time_to_first_token_seconds", "From ADD to the first token.", tally.first_token),
            ("inter_token_latency_seconds", "Between tokens of a request.", tally.between_tokens),
            ("e2e_request_latency_seconds", "From ADD to the end.", tally.whole_request),
            ("request_queue_time_seconds", "In the engine's queue.", tally.queue),
            ("request_prefill_time_seconds", "From the queue to the first token.", tally.prefill),
            ("request_decode_time_seconds", "From the first token to the last.", tally.decode),
            ("request_inference_time_seconds", "From the queue to the last.", tally.inference),
        ):
            yield self._histogram(f"vllm:{name}", text, values)

    def _histogram(self, name: str, text: str, values: Distribution) -> Metric:
        family = HistogramMetricFamily(name, text, labels=_LABELS)
        family.add_metric(self._labels, values.cumulative(), values.total)
        return family

    def _server(self) -> Iterator[Metric]:
        state, tally = self._state, self._state.tally
        sessions = state.book.sessions()
        for name, text, value in (
            ("clients", "Clients with a session.", len(sessions)),
            ("in_flight", "Unfinished requests of all clients.", state.in_flight),
            (
                "queued_messages",
                "Messages that wait for clients to read.",
                sum(len(session.backlog) for session in sessions),
            ),
            (
                "queued_bytes",
                "Bytes that wait for clients to read.",
                sum(session.backlog_bytes for session in sessions),
            ),
            ("epoch", "Which process of this engine it is.", state.config.epoch),
        ):
            gauge = GaugeMetricFamily(f"enginecore_server_{name}", text, labels=_LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        yield from self._phases()
        rejected = CounterMetricFamily(
            "enginecore_server_rejected",
            "Messages refused, by reason.",
            labels=(*_LABELS, "reason"),
        )
        for reason, count in tally.rejected.items():
            rejected.add_metric([*self._labels, reason], count)
        yield rejected
        refused = CounterMetricFamily(
            "enginecore_server_refused_connections",
            "Connections that never had a session, by reason.",
            labels=(*_LABELS, "reason"),
        )
        for reason, count in tally.refused_connections.items():
            refused.add_metric([*self._labels, reason], count)
        yield refused
        yield self._histogram(
            "enginecore_server_relay_latency_seconds",
            "From reading an engine message to handing it to the client's socket.",
            tally.relay,
        )
        for name, text, count in (
            ("outputs_relayed", "Engine messages passed to clients.", tally.outputs_relayed),
            ("outputs_dropped", "Engine messages no client owned.", tally.outputs_dropped),
            ("outputs_replayed", "Engine messages sent again.", tally.outputs_replayed),
            ("unreadable_outputs", "Engine messages that were none.", tally.unreadable_outputs),
            ("foreign_aborts", "Aborts of other clients' requests.", tally.foreign_aborts),
            ("vanished_clients", "Clients dropped after their grace.", tally.vanished_clients),
            ("slow_clients", "Clients dropped for not reading.", tally.slow_clients),
            ("impostors", "Messages under another key's routing id.", tally.impostors),
        ):
            counter = CounterMetricFamily(f"enginecore_server_{name}", text, labels=_LABELS)
            counter.add_metric(self._labels, count)
            yield counter

    def _phases(self) -> Iterator[Metric]:
        phases = self._state.phases
        labels = (*_LABELS, "phase")
        now = GaugeMetricFamily(
            "enginecore_server_phase", "1 for the phase the server is in.", labels=labels
        )
        spent = CounterMetricFamily(
            "enginecore_server_phase_seconds", "Time spent in each phase.", labels=labels
        )
        for phase, seconds in phases.spent.items():
            now.add_metric([*self._labels, phase], 1.0 if phase is phases.phase else 0.0)
            spent.add_metric([*self._labels, phase], seconds)
        yield now
        yield spent
