"""Prometheus metrics of a client, per engine, on a registry passed in."""

from typing import TYPE_CHECKING, Any, Final

from enginecore_client._core.books import RequestRecord
from enginecore_client._core.events import (
    Delivered,
    EngineAway,
    EngineDown,
    EngineLost,
    EngineRemoved,
    EngineUp,
    Event,
    LoadKnown,
    RequestAdded,
    RequestEnded,
    RequestSetAside,
    StatsUpdate,
)
from enginecore_client.errors import RequestRejectedError
from enginecore_wire.outputs import FinishReason, SchedulerStats

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

LABELS: Final = ("model_name", "engine")
_FIRST_TOKEN_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.25, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_TOKEN_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4,
)  # fmt: skip
_REQUEST_BUCKETS: Final = (
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0,
)  # fmt: skip


class NoMetrics:
    """Metrics of a client that was given no registry."""

    def observe(self, event: Event) -> None:
        """Take note of an event."""

    def close(self) -> None:
        """Take back everything that was registered."""


class Metrics(NoMetrics):
    """Gauges, counters and histograms of one client.

    `vllm:*` gauges mean what they mean in vLLM and follow each stats update; what this client
    itself counts is named `enginecore_client_*`. One registry serves one client; several
    clients in a process use a registry each.

    Raises:
        RequestRejectedError: the registry has metrics of these names; none was added.
    """

    def __init__(self, registry: "CollectorRegistry") -> None:
        from prometheus_client import (  # noqa: PLC0415 - clients without metrics save its cost
            Counter,
            Gauge,
            Histogram,
        )

        self._registry = registry
        self._collectors: list[Any] = []
        self._models: dict[int, str] = {}
        self._children: dict[int, dict[tuple[Any, ...], Any]] = {}

        def make(kind: Any, name: str, text: str, *more: str, **options: Any) -> Any:
            try:
                metric = kind(name, text, (*LABELS, *more), registry=registry, **options)
            except ValueError as error:
                self.close()
                raise RequestRejectedError(
                    f"registry: it has {name} already, perhaps of another client; give each client "
                    "a registry of its own",
                    field="registry",
                ) from error
            self._collectors.append(metric)
            return metric

        self._running = make(Gauge, "vllm:num_requests_running", "Requests being computed")
        self._waiting = make(Gauge, "vllm:num_requests_waiting", "Requests waiting")
        self._kv_usage = make(Gauge, "vllm:kv_cache_usage_perc", "KV cache in use, 1 = all of it")
        self._load = make(
            Gauge, "enginecore_client_engine_load",
            "Waiting and running requests by which the client chooses engines",
        )  # fmt: skip
        self._ready = make(Gauge, "enginecore_client_engine_ready", "1 while the engine is ready")
        self._in_flight = make(
            Gauge, "enginecore_client_requests_in_flight", "Unfinished requests of this client"
        )
        self._requests = make(
            Counter, "enginecore_client_requests", "Requests that ended, by reason", "reason"
        )
        self._errors = make(
            Counter, "enginecore_client_errors", "Requests that ended with an error", "type"
        )
        self._prompt = make(Counter, "enginecore_client_prompt_tokens", "Prompt tokens sent")
        self._tokens = make(Counter, "enginecore_client_generation_tokens", "Tokens received")
        self._losses = make(Counter, "enginecore_client_engine_losses", "Times the engine was lost")
        self._first = make(
            Histogram, "enginecore_client_time_to_first_token_seconds",
            "From adding a request to its first token", buckets=_FIRST_TOKEN_BUCKETS,
        )  # fmt: skip
        self._inter = make(
            Histogram, "enginecore_client_inter_token_latency_seconds",
            "Between two outputs of a request, per token", buckets=_TOKEN_BUCKETS,
        )  # fmt: skip
        self._whole = make(
            Histogram, "enginecore_client_e2e_request_latency_seconds",
            "From adding a request to its end", buckets=_REQUEST_BUCKETS,
        )  # fmt: skip

    def observe(self, event: Event) -> None:
        """Take note of an event."""
        match event:
            case Delivered():
                self._delivered(event)
            case StatsUpdate(engine, stats):
                self._stats(engine, stats)
            case LoadKnown(engine, load):
                self._of(self._load, engine).set(load.waiting + load.running)
            case RequestAdded(engine, record):
                self._of(self._prompt, engine).inc(record.prompt_tokens)
                self._of(self._in_flight, engine).inc()
            case RequestSetAside(engine):
                self._of(self._in_flight, engine).dec()
            case RequestEnded(engine) if engine is not None:
                self._ended(engine, event)
            case EngineUp(engine, ready):
                if self._models.get(engine) != ready.model_name:
                    self._forget(engine)
                    self._models[engine] = ready.model_name
                self._of(self._ready, engine).set(1)
                self._stats(engine, SchedulerStats())
            case EngineLost(engine):
                self._of(self._losses, engine).inc()
            case EngineDown(engine) | EngineAway(engine):
                self._of(self._ready, engine).set(0)
                self._forget(engine, (self._running, self._waiting, self._kv_usage, self._load))
            case EngineRemoved(engine):
                self._forget(engine)
                self._models.pop(engine, None)

    def close(self) -> None:
        """Take back everything that was registered."""
        for collector in self._collectors:
            self._registry.unregister(collector)
        self._collectors = []

    def _of(self, metric: Any, engine: int, *more: str) -> Any:
        """Return a metric's series of one engine."""
        children = self._children.setdefault(engine, {})
        child = children.get((metric, *more))
        if child is None:
            child = metric.labels(self._models.get(engine, ""), str(engine), *more)
            children[(metric, *more)] = child
        return child

    def _forget(self, engine: int, metrics: tuple[Any, ...] | None = None) -> None:
        """Remove an engine's series, of all metrics unless some are named."""
        labels = self._models.get(engine, ""), str(engine)
        children = self._children.get(engine, {})
        for metric, *more in list(children):
            if metrics is None or metric in metrics:
                del children[(metric, *more)]
                metric.remove(*labels, *more)

    def _stats(self, engine: int, stats: SchedulerStats) -> None:
        self._of(self._running, engine).set(stats.num_running_reqs)
        self._of(self._waiting, engine).set(stats.num_waiting_reqs)
        self._of(self._kv_usage, engine).set(stats.kv_cache_usage)

    def _ended(self, engine: int, event: RequestEnded) -> None:
        self._of(self._in_flight, engine).dec()
        record, error = event.record, event.error
        if error is not None:
            self._of(self._requests, engine, "error").inc()
            self._of(self._errors, engine, type(error).__name__).inc()
        elif record.stopped:
            self._of(self._requests, engine, "stop").inc()
            self._of(self._whole, engine).observe(_seconds(record))
        else:
            self._of(self._requests, engine, "cancelled").inc()

    def _delivered(self, event: Delivered) -> None:
        engine = event.engine
        received = 0
        for record, output in zip(event.records, event.outputs, strict=True):
            count = len(output.new_token_ids)
            if count:
                self._received(engine, record, count, event.at)
            received += count
            if output.finish_reason is not None:
                reason = FinishReason(output.finish_reason).name.lower()
                self._of(self._requests, engine, reason).inc()
                self._of(self._in_flight, engine).dec()
                self._of(self._whole, engine).observe(_seconds(record))
        self._of(self._tokens, engine).inc(received)

    def _received(self, engine: int, record: RequestRecord, count: int, at: float) -> None:
        before, record.token_at = record.token_at, at
        if before is None:
            self._of(self._first, engine).observe(at - record.added_at)
            return
        latency = self._of(self._inter, engine)
        for _ in range(count):
            latency.observe((at - before) / count)


def _seconds(record: RequestRecord) -> float:
    """Return how long a request took, to its last token."""
    return 0.0 if record.token_at is None else record.token_at - record.added_at


def start_metrics_server(
    registry: "CollectorRegistry", port: int, host: str = ""
) -> tuple[Any, Any]:
    """Serve a registry over HTTP from a daemon thread; returns (server, thread).

    Stop it with `server.shutdown()` and `thread.join()`. Port 0 takes a free one. Without a
    host it listens on every interface, by IPv4 and IPv6.
    """
    import socket  # noqa: PLC0415 - as above

    from prometheus_client import start_http_server  # noqa: PLC0415 - as above

    every = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    return start_http_server(port, addr=host or every, registry=registry)
