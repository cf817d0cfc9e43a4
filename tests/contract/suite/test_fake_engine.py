"""FakeEngine: an engine in a thread, as the tests of an application use it."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from enginecore_client import (
    AsyncMPClient,
    EngineDeadError,
    FinishReason,
    OutputKind,
    RequestRejectedError,
    RequestTimeoutError,
    SamplingParams,
    SyncMPClient,
    UtilityError,
)
from enginecore_client.testing import FakeEngine
from enginecore_client.testing._handshakes import Handshakes
from enginecore_wire.coordination import LoadReport
from support.eventually import eventually

PROMPT = [7, 11, 13]
SHORT = SamplingParams(max_tokens=4, output_kind=OutputKind.DELTA)
LONG = SamplingParams(max_tokens=2000, output_kind=OutputKind.DELTA)


def tokens(client: SyncMPClient, params: SamplingParams = SHORT, **options: int) -> list[int]:
    return [t for o in client.generate(PROMPT, params, **options) for t in o.new_token_ids]


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine(token_seconds=0.001) as running:
        yield running


@pytest.fixture
def client(engine: FakeEngine) -> Iterator[SyncMPClient]:
    with SyncMPClient(engine.client_addresses, native=engine.native, ready_timeout=20) as made:
        yield made


def test_it_is_steered_while_it_runs(engine: FakeEngine, client: SyncMPClient) -> None:
    assert tokens(client) == [7, 11, 13, 7]
    engine.core.answer = lambda _request: [99]
    outputs = list(client.generate(PROMPT, SHORT))
    assert [(o.new_token_ids, o.finish_reason) for o in outputs] == [([99], FinishReason.STOP)]
    engine.core.results["list_loras"] = [3]
    assert client.list_loras() == {3}
    engine.core.results["is_sleeping"] = RuntimeError("out of sheep")
    with pytest.raises(UtilityError, match="out of sheep"):
        client.is_sleeping()
    engine.core.workers["add"] = lambda a, b: a + b
    assert client.collective_rpc("add", args=(1,), kwargs={"b": 2}) == [3]
    with pytest.raises(RequestRejectedError):
        tokens(client, SamplingParams(temperature=-1.0))
    assert [request.external_req_id for request in engine.core.adds][1:] != [""]
    assert len(engine.core.adds) == 2


def test_answers_of_a_paused_engine_wait(engine: FakeEngine, client: SyncMPClient) -> None:
    engine.core.paused = True
    stream = client.generate(PROMPT, SHORT)
    eventually(lambda: engine.core.adds, "it came")
    with pytest.raises(RequestTimeoutError):
        list(client.generate(PROMPT, SHORT, deadline=0.1))
    engine.core.paused = False
    assert [t for o in stream for t in o.new_token_ids] == [7, 11, 13, 7]


@pytest.mark.parametrize("end", ["die", "vanish"])
def test_its_death(engine: FakeEngine, client: SyncMPClient, end: str) -> None:
    stream = client.generate(PROMPT, LONG)
    next(stream)
    getattr(engine, end)()
    words = "the engine process died" if end == "die" else "connection"
    with pytest.raises(EngineDeadError, match=words):
        list(stream)
    assert not engine.alive
    assert client.engine_dead


def test_what_breaks_a_step_is_its_death(engine: FakeEngine, client: SyncMPClient) -> None:
    engine.core.before_step = lambda: 1 // 0
    with pytest.raises(EngineDeadError, match="the engine process died"):
        tokens(client)


def test_frozen_and_thawed(engine: FakeEngine, client: SyncMPClient) -> None:
    engine.freeze()
    with pytest.raises(RequestTimeoutError):
        client.call_utility("is_sleeping", timeout=0.2)
    engine.thaw()
    assert client.is_sleeping() is False
    assert tokens(client) == [7, 11, 13, 7]


def test_closing_it_ends_requests_in_order(engine: FakeEngine, client: SyncMPClient) -> None:
    stream = client.generate(PROMPT, LONG)
    next(stream)
    directory = Path(engine.client_addresses["input_address"].removeprefix("ipc://")).parent
    engine.close()
    engine.close()
    *_, last = stream
    assert last.finish_reason is FinishReason.ABORT
    assert not directory.exists()


def test_another_one_takes_over(engine: FakeEngine, client: SyncMPClient) -> None:
    engine.vanish()
    with pytest.raises(EngineDeadError):
        client.get_output(10)
    with FakeEngine(client_addresses=client.client_addresses):
        assert tokens(client, retry=True, deadline=20) == [7, 11, 13, 7]


def test_a_launchers_addresses_are_not_its_own() -> None:
    with FakeEngine(handshake="tcp://127.0.0.1:9") as engine, pytest.raises(LookupError):
        engine.client_addresses  # noqa: B018 - raises


def test_two_ranks() -> None:
    with (
        FakeEngine() as first,
        FakeEngine(rank=1, client_addresses=first.client_addresses) as other,
    ):
        both = {"data_parallel_size": 2, "native": first.native, "ready_timeout": 20}
        with SyncMPClient(first.client_addresses, **both) as client:
            for rank in (0, 1):
                assert tokens(client, data_parallel_rank=rank) == [7, 11, 13, 7]
            assert [len(each.core.adds) for each in (first, other)] == [1, 1]
            other.die()
            assert tokens(client) == [7, 11, 13, 7]


async def test_dials_through_a_handshake() -> None:
    free = {"input_address": "tcp://127.0.0.1:0", "output_address": "tcp://127.0.0.1:0"}
    client = AsyncMPClient(free | {"mode": "bind"}, ready_timeout=20)
    assert client.client_addresses is not None
    with Handshakes(client.client_addresses) as desk:
        place = f"tcp://127.0.0.1:{desk.port}"
        with FakeEngine(handshake=place, load_seconds=0.1):
            async with client:
                stream = client.generate(PROMPT, SHORT)
                assert [t async for o in stream for t in o.new_token_ids] == [7, 11, 13, 7]
    assert [status for _, status in desk.statuses] == ["HELLO", "READY"]


def test_nobody_dials_it_and_it_ends() -> None:
    for options in ({}, {"load_seconds": 60.0}, {"handshake": "tcp://127.0.0.1:9"}):
        FakeEngine(**options).close()  # type: ignore[arg-type]


def test_it_tells_a_coordinator_of_its_load() -> None:
    command = FakeEngine.command("--token-seconds", "0.01")
    with SyncMPClient(engine_command=command, data_parallel_size=2, ready_timeout=20) as client:
        addresses = client.client_addresses
        assert addresses is not None
        with zmq.Context() as context, context.socket(zmq.XSUB) as loads:
            loads.linger = 0
            loads.connect(str(addresses.stats_update_address))
            loads.send(b"\x01")
            stream = client.generate(PROMPT, LONG, data_parallel_rank=1)
            next(stream)

            def running() -> list[int]:
                assert loads.poll(1000)
                report = msgspec.msgpack.decode(loads.recv(), type=LoadReport)
                return [load.running for load in report.loads or ()]

            eventually(lambda: running() == [0, 1], "the load of rank 1")
            stream.close()
            eventually(lambda: running() == [0, 0], "no load")


def test_what_it_does_not_survive() -> None:
    """A client that is told of no vocabulary lets a token through that is not in it."""
    with (
        FakeEngine(vocab_size=5) as small,
        SyncMPClient(small.client_addresses, ready_timeout=20) as careless,
        pytest.raises(EngineDeadError, match="the engine process died"),
    ):
        tokens(careless)
