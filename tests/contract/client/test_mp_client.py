"""MPClient and BackgroundResources: everything ends once, whatever happens on the way; errors of
the reader reach whoever reads; calls are matched with their replies."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from enginecore_client import (
    AddressError,
    AsyncMPClient,
    ClientClosedError,
    EngineDeadError,
    LaunchOptions,
    MPClient,
    RequestRejectedError,
    RequestTimeoutError,
    SamplingParams,
    StartupTimeoutError,
    SyncMPClient,
)
from enginecore_client._shell.background import BackgroundResources
from enginecore_client._shell.driver import Driver
from enginecore_client._shell.loop import LoopResources
from enginecore_client._shell.thread import ThreadResources
from enginecore_client.ops import IsSleeping
from enginecore_wire.outputs import ENGINE_CORE_DEAD
from support.eventually import eventually, eventually_async
from support.protocol_peer import ProtocolPeer

PROMPT = [7, 11, 13]
PARAMS = SamplingParams(max_tokens=3)


def tokens(client: SyncMPClient) -> list[int]:
    return [*client.generate(PROMPT, PARAMS)][-1].new_token_ids


@pytest.mark.parametrize(
    ("frames", "dead"),
    [
        ([ENGINE_CORE_DEAD], True),
        ([memoryview(ENGINE_CORE_DEAD)], True),
        ([ENGINE_CORE_DEAD, b""], False),
        ([ENGINE_CORE_DEAD[:-1]], False),
        ([b"\x99\x00"], False),
    ],
)
def test_validate_alive(frames: list[Any], dead: bool) -> None:
    if dead:
        with pytest.raises(EngineDeadError):
            BackgroundResources.validate_alive(frames)
    else:
        BackgroundResources.validate_alive(frames)


def test_resources_outlive_the_client_and_do_not_know_it(peer: ProtocolPeer) -> None:
    client = SyncMPClient(peer.addresses)
    resources, gone = client.resources, weakref.ref(client)
    assert isinstance(resources, BackgroundResources)
    del client
    gc.collect()
    assert gone() is None
    assert resources.driver is not None
    assert resources.driver.core.closed
    resources()
    resources()
    eventually(lambda: peer.byes == 1, "one BYE")


def fail(*_: object, **__: object) -> None:
    raise RuntimeError("half-way")


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Driver, "__init__"), (ThreadResources, "start"), (Driver, "start")],
    ids=["driver", "thread", "first tick"],
)
def test_fault_57757_sync_construction_that_fails_leaves_nothing(
    peer: ProtocolPeer, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    registry = CollectorRegistry()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        if name == "start" and owner is Driver:  # in the reader thread, which says so
            patch.setattr(threading, "excepthook", lambda _: None)
        with pytest.raises((RuntimeError, ClientClosedError), match="half-way"):
            SyncMPClient(peer.addresses, registry=registry, ready_timeout=5)
    gc.collect()
    with SyncMPClient(peer.addresses, registry=CollectorRegistry()) as client:
        assert tokens(client) == PROMPT


@pytest.mark.parametrize(
    ("owner", "name"), [(Driver, "__init__"), (LoopResources, "attach"), (Driver, "start")]
)
async def test_fault_57757_async_construction_that_fails_leaves_nothing(
    peer: ProtocolPeer, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(RuntimeError, match="half-way"):
            AsyncMPClient(peer.addresses)
    gc.collect()


def test_what_a_constructor_refuses_leaves_nothing(peer: ProtocolPeer) -> None:
    registry = CollectorRegistry()
    with SyncMPClient(peer.addresses, registry=registry):
        for wrong, kind in (
            ({"registry": registry}, ValueError),
            ({"client_index": 3}, RequestRejectedError),
            ({"engine_ranks": [4, 5]}, AddressError),
            ({"ready_timeout": None}, RequestRejectedError),
        ):
            for made in (SyncMPClient, AsyncMPClient):
                with pytest.raises(kind):
                    made(peer.addresses, **wrong)  # type: ignore[arg-type]
    peer.ready = None
    with pytest.raises(StartupTimeoutError):
        SyncMPClient(peer.addresses, ready_timeout=0.1)


@pytest.mark.parametrize("make", [SyncMPClient, AsyncMPClient])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("client_name", 5),
        ("client_name", None),
        ("registry", "x"),
        ("retry", "no"),
        ("lockstep", 1),
        ("check_prompts", None),
        ("tokenizer", "gpt2"),
        ("load_score", 0.5),
        ("launch", LaunchOptions(host="::1")),
    ],
)
def test_options_of_another_kind_are_named(
    peer: ProtocolPeer, make: Callable[..., object], field: str, value: object
) -> None:
    with pytest.raises(RequestRejectedError, match=f"^{field}: ") as caught:
        make(peer.addresses, **{field: value})
    assert caught.value.field == field


def test_collected_in_any_thread(peer: ProtocolPeer) -> None:
    """A client in a reference cycle ends in whatever thread the collector happens to run."""

    class Holder:
        client: Any
        itself: Any

    for make in (SyncMPClient, AsyncMPClient):
        holder = Holder()
        holder.itself, holder.client = holder, make(peer.addresses)
        gone = weakref.ref(holder.client)
        del holder
        collector = threading.Thread(target=gc.collect)
        collector.start()
        collector.join()
        assert gone() is None
    eventually(lambda: peer.byes == 1, "BYE of the one that was connected")


def test_fault_57757_loop_closed_before_it_came_to_closing(peer: ProtocolPeer) -> None:
    loop = asyncio.new_event_loop()

    async def drop() -> None:
        client = AsyncMPClient(peer.addresses)
        await client.connect()
        del client
        gc.collect()
        loop.stop()  # nothing that is called soon is called any more

    task = loop.create_task(drop())
    loop.run_forever()
    del task
    loop.close()
    gc.collect()
    eventually(lambda: peer.byes == 1, "BYE")


def test_engine_dead_and_ensure_alive(peer: ProtocolPeer) -> None:
    with SyncMPClient(peer.addresses) as client:
        assert isinstance(client, MPClient)
        assert not client.engine_dead
        client.ensure_alive()
        peer.die()
        with pytest.raises(EngineDeadError, match="the engine process died"):
            client.get_output(10)
        eventually(lambda: client.engine_dead, "it is known to be dead")
        assert client.resources.engine_dead
        with pytest.raises(EngineDeadError, match="no engine is alive: rank 0 at"):
            client.ensure_alive()
        for ask in (client.is_sleeping, lambda: tokens(client)):
            with pytest.raises(EngineDeadError, match="no engine is alive"):
                ask()
        ports = peer.ports
        peer.close(0)
        with ProtocolPeer(epoch=2, ports=ports):
            eventually(lambda: not client.engine_dead, "another process is there")
            client.ensure_alive()
            assert tokens(client) == PROMPT


def test_get_output_raises_what_ended_the_reader(
    peer: ProtocolPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.streaming = False
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    client = SyncMPClient(peer.addresses)
    stream = client.generate(PROMPT, PARAMS)
    client._driver.core.links.receive = fail  # type: ignore[assignment]
    peer.stats(0, 0)
    for read in (client.get_output, client.get_output, lambda: next(stream)):
        with pytest.raises(ClientClosedError, match=r"the client failed: RuntimeError\('half-way"):
            read()
    with pytest.raises(ClientClosedError, match="the reader thread failed"):
        client.is_sleeping()
    eventually(lambda: not client.resources._thread.is_alive(), "the thread ended")
    client.close()


def test_fault_13298_closing_takes_little_time_also_with_a_dead_peer(peer: ProtocolPeer) -> None:
    client = SyncMPClient(peer.addresses)
    peer.close(0)
    begin = time.monotonic()
    client.close()
    assert time.monotonic() - begin < 5.0
    assert not client.resources._thread.is_alive()


def test_utility_results_by_call_id(peer: ProtocolPeer) -> None:
    peer.results = {"is_sleeping": True}
    with SyncMPClient(peer.addresses) as client:
        assert client.utility_results == {}
        peer.answering = False
        with pytest.raises(RequestTimeoutError):
            client.call(IsSleeping(), timeout=0.3)
        waiting = threading.Thread(target=lambda: values.append(client.is_sleeping()))
        values: list[bool] = []
        waiting.start()
        eventually(lambda: len(peer.calls) == 2, "the call came")
        (call_id,) = client.utility_results
        late, call = peer.calls
        assert (call.client_index, call.call_id, call.method, call.args) == (
            peer.session().slot, call_id, "is_sleeping", [],
        )  # fmt: skip
        peer.answering = True
        with peer.lock:
            for each in (late, call):  # the first one's caller is gone: its reply is dropped
                peer._call(peer.session(), each)
        waiting.join()
        assert values == [True]
        assert client.utility_results == {}


async def test_utility_results_of_cancelled_calls(peer: ProtocolPeer) -> None:
    async with AsyncMPClient(peer.addresses) as client:
        peer.answering = False
        task = asyncio.create_task(client.is_sleeping_async())
        await eventually_async(lambda: len(client.utility_results) == 1)
        task.cancel()
        await asyncio.wait([task])
        assert client.utility_results == {}


WRONG: list[tuple[Callable[[SyncMPClient], Any], str, str]] = [
    (lambda client: client.abort_requests(None), "request_ids", "a list of request ids"),  # type: ignore[arg-type]
    (lambda client: client.abort_requests("abc"), "request_ids", "a list of request ids"),
    (lambda client: client.abort_requests([5]), "request_ids", "a list of request ids"),  # type: ignore[list-item]
    (lambda client: client.get_output(timeout="x"), "timeout", "seconds from now"),  # type: ignore[arg-type]
    (lambda client: client.get_output(timeout=float("nan")), "timeout", "seconds from now"),
    (lambda client: client.shutdown("x"), "timeout", "seconds"),  # type: ignore[arg-type]
    (lambda client: client.call(IsSleeping(), engine=7), "engine", "no engine 7; engines are 0"),
    (lambda client: client.call(IsSleeping(), engine="0"), "engine", "no engine '0'"),  # type: ignore[arg-type]
    (lambda client: client.call(IsSleeping(), engine=False), "engine", "no engine False"),
    (lambda client: client.collective_rpc(b"\x80pickle"), "method", "a pickle runs whatever"),  # type: ignore[arg-type]
    (lambda client: client.collective_rpc(print), "method", "a pickle runs whatever"),  # type: ignore[arg-type]
    (lambda client: client.collective_rpc("f", args="text"), "args", "array"),
]


def test_wrong_arguments_name_the_field(peer: ProtocolPeer) -> None:
    with SyncMPClient(peer.addresses) as client:
        for ask, field, words in WRONG:
            with pytest.raises(RequestRejectedError, match=words) as caught:
                ask(client)
            assert caught.value.field == field
        assert peer.calls == []
        assert tokens(client) == PROMPT
