"""What a scrape shows."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from enginecore_server.metrics import ServerCollector
from enginecore_server.model_facts import ModelInputs
from enginecore_server.sessions import Side
from enginecore_server.state import ServerState
from enginecore_server.tally import Distribution
from enginecore_wire.contract import ModelConfig, ServerConfig
from enginecore_wire.control import Phase


def scrape(state: ServerState) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    registry = CollectorRegistry()
    ServerCollector(state, registry)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def state() -> ServerState:
    config = ServerConfig(name="n", model=ModelConfig("/m", served_name="smollm"), rank=2, epoch=5)
    return ServerState(config, ModelInputs(100), 0)


ENGINE = (("engine", "2"), ("model_name", "smollm"))


@pytest.mark.parametrize(
    "name",
    [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:time_to_first_token_seconds_count",
        "vllm:inter_token_latency_seconds_count",
        "vllm:e2e_request_latency_seconds_sum",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:num_preemptions_total",
        "vllm:request_queue_time_seconds_count",
        "vllm:request_prefill_time_seconds_count",
        "vllm:request_decode_time_seconds_count",
        "vllm:request_inference_time_seconds_count",
        "enginecore_server_queued_messages",
        "enginecore_server_queued_bytes",
        "enginecore_server_relay_latency_seconds_count",
    ],
)
def test_an_idle_engine_reads_zero(name: str) -> None:
    assert scrape(state())[name, ENGINE] == 0.0


@pytest.mark.parametrize("reason", ["stop", "length", "abort", "error", "repetition"])
def test_every_finish_reason_has_a_series(reason: str) -> None:
    books = state()
    books.tally.finished[reason] += 2
    labels = (("engine", "2"), ("finished_reason", reason), ("model_name", "smollm"))
    assert scrape(books)["vllm:request_success_total", labels] == 2.0


def test_one_phase_is_shown() -> None:
    values = scrape(state())
    phases = {labels: v for (name, labels), v in values.items() if name.endswith("_phase")}
    assert phases[(*ENGINE, ("phase", "Starting"))] == 1.0
    assert sum(phases.values()) == 1.0


def test_every_phase_has_its_seconds() -> None:
    books = state()
    books.phases.enter(Phase.HANDSHAKING)
    name = "enginecore_server_phase_seconds_total"
    seconds = {dict(labels)["phase"]: v for (n, labels), v in scrape(books).items() if n == name}
    assert set(seconds) == set(Phase)
    assert seconds["Starting"] > 0.0
    assert seconds["Ready"] == 0.0


def test_the_epoch_tells_which_process_it_is() -> None:
    assert scrape(state())["enginecore_server_epoch", ENGINE] == 5.0


def test_what_waits_for_clients_is_shown() -> None:
    books = state()
    for name, waiting in ((b"a", 3), (b"b", 2)):
        for fd, side in enumerate(Side):
            books.book.hello(side, name, b"nonce", "", fd, 1)
        session = books.book.find(name)
        assert session is not None
        session.backlog.extend([[b"x" * 10]] * waiting)
        session.backlog_bytes = 10 * waiting
    values = scrape(books)
    assert values["enginecore_server_clients", ENGINE] == 2.0
    assert values["enginecore_server_queued_messages", ENGINE] == 5.0
    assert values["enginecore_server_queued_bytes", ENGINE] == 50.0


def test_refusals_are_counted_by_reason() -> None:
    books = state()
    books.tally.rejected["overloaded"] += 1
    values = scrape(books)
    name = "enginecore_server_rejected_total"
    assert values[name, (*ENGINE, ("reason", "overloaded"))] == 1.0
    assert values[name, (*ENGINE, ("reason", "draining"))] == 0.0


def test_buckets_hold_their_upper_bound() -> None:
    values = Distribution((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 2.0):
        values.observe(seconds)
    assert values.cumulative() == [("0.1", 2), ("1.0", 3), ("+Inf", 4)]
    assert values.total == pytest.approx(2.65)


def test_equal_values_count_as_often_as_they_are() -> None:
    values = Distribution((0.1, 1.0))
    values.observe_all(0.5, 64)
    assert values.cumulative() == [("0.1", 0), ("1.0", 64), ("+Inf", 64)]
    assert values.total == 32.0
