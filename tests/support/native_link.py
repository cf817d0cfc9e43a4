"""ClientCore joined to engines in memory that dial in: no socket, and a clock a test moves."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from enginecore_client._addresses.addresses import ClientAddresses
from enginecore_client._core.books import Ids, RequestRecord
from enginecore_client._core.core import ClientCore, CoreSettings
from enginecore_client._core.events import Close, Event, Open, RequestEnded, Subscribe
from enginecore_client._core.native_options import Facts, NativeOptions
from enginecore_client._core.native_transport import NativeTransport
from enginecore_client._core.states import Channel
from enginecore_wire.codec import MsgpackDecoder, MsgpackEncoder
from enginecore_wire.handshake import engine_rank
from enginecore_wire.outputs import (
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    UtilityOutput,
    UtilityResult,
)
from enginecore_wire.requests import EngineCoreRequest, RequestType, SamplingParams, UtilityCall
from support.memory_link import Counting

FACTS = {"max_model_len": 100, "vllm_version": "0.32.0", "data_parallel_rank": 0}
PROBE_ID = 77
SINK = object()
"""Where the outputs of `add` go."""


class MemoryEngine:
    """One engine process: what came to it, and whether the client's socket has its name."""

    def __init__(self) -> None:
        self.connected = False
        self.keep: Callable[[list[Any]], None] | None = None
        self.adds: list[EngineCoreRequest] = []
        self.aborts: list[str] = []
        self.calls: list[UtilityCall] = []

    @property
    def probes(self) -> int:
        return sum(call.call_id == PROBE_ID for call in self.calls)


class NativeLink:
    """A core and the engines of its ranks. `now` is the clock."""

    def __init__(self, *ranks: int, client_index: int = 0, **options: Any) -> None:
        self.now = 100.0
        self.links: dict[int, int] = {}
        self.engines = {rank: MemoryEngine() for rank in ranks}
        self.closed: list[Close] = []
        self._encoder = MsgpackEncoder()
        self._requests = MsgpackDecoder(EngineCoreRequest)
        facts = Facts(client_index, NativeOptions(**options))
        self.core = ClientCore(
            CoreSettings(client_index=client_index, client_count=client_index + 1),
            Ids(Counting()),
            lambda: 7e8,
            self.now,
            NativeTransport(ranks, facts, PROBE_ID),
        )
        addresses = {"input_address": "tcp://*:1", "output_address": "tcp://*:2", "mode": "bind"}
        self.core.set_addresses(ClientAddresses.from_dict(addresses), self.now)
        self.run()

    def run(self) -> list[Event]:
        """Carry frames until nothing moves; return the events."""
        events: list[Event] = []
        while True:
            moved = self._actions() + self._frames()
            events += self.core.take_events()
            if not moved:
                return events

    def wait(self, seconds: float, step: float = 0.1) -> list[Event]:
        """Let time pass in ticks."""
        events: list[Event] = []
        for _ in range(round(seconds / step)):
            self.now += step
            self.core.tick(self.now)
            events += self.run()
        return events

    def announce(self, rank: int, payload: bytes | None = None, **facts: Any) -> list[Event]:
        """Have a new process of a rank dial in and say READY."""
        self.engines[rank] = MemoryEngine()
        self.engines[rank].connected = True
        body = msgspec.msgpack.encode(FACTS | facts) if payload is None else payload
        self.core.links.announced(self.links[rank], body, self.now)
        return self.run()

    def down(self, rank: int, *channels: Channel) -> list[Event]:
        """Break the connections of an engine, or one of them."""
        self.engines[rank].connected = False
        for channel in channels or Channel:
            self.core.links.disconnected(self.links[rank], channel, self.now)
        return self.run()

    def exit(self, rank: int, ending: str) -> list[Event]:
        """End the process of an engine, which its launcher sees."""
        self.engines[rank].connected = False
        self.core.links.exited(rank, ending, self.now)
        return self.run()

    def raw(self, rank: int, *frames: bytes) -> list[Event]:
        """Have an engine send any frames."""
        self.core.links.receive(self.links[rank], list(frames), self.now)
        return self.run()

    def outputs(self, rank: int, **fields: Any) -> list[Event]:
        """Have an engine send a message."""
        return self.raw(rank, *self._encoder.encode(EngineCoreOutputs(rank, **fields)))

    def token(
        self, rank: int, index: int, *tokens: int, reason: FinishReason | None = None
    ) -> list[Event]:
        """Have an engine send tokens of the ADD number `index`."""
        name = self.engines[rank].adds[index].request_id
        return self.outputs(rank, outputs=[EngineCoreOutput(name, [*tokens], finish_reason=reason)])

    def reply(self, rank: int, index: int = -1, value: Any = None) -> list[Event]:
        """Have an engine answer the call number `index`."""
        call_id = self.engines[rank].calls[index].call_id
        return self.outputs(
            rank, utility_output=UtilityOutput(call_id, None, UtilityResult(None, value))
        )

    def _actions(self) -> int:
        actions = self.core.take_actions()
        for action in actions:
            match action:
                case Open(link, _, routing_id):
                    rank = engine_rank(routing_id)
                    assert rank is not None
                    self.links[rank] = link
                case Close():
                    self.closed.append(action)
                case Subscribe(address):
                    assert address is None
        return len(actions)

    def _frames(self) -> int:
        count = 0
        for connection in self.core.take_sendable():
            rank = next(r for r, link in self.links.items() if link == connection.link)
            while (item := connection.next_frames()) is not None:
                if not self.engines[rank].connected:
                    self.core.links.disconnected(connection.link, Channel.INPUT, self.now)
                    break
                connection.sent()
                self._take(self.engines[rank], item[1])
                count += 1
        return count

    def _take(self, engine: MemoryEngine, frames: list[Any]) -> None:
        kind = frames[0]
        if engine.keep is not None:
            engine.keep(frames)
            return
        if kind == RequestType.ADD:
            engine.adds.append(self._requests.decode(frames[1], frames[2:]))
        elif kind == RequestType.ABORT:
            engine.aborts += msgspec.msgpack.decode(frames[1], type=list[str])
        else:
            assert kind == RequestType.UTILITY
            engine.calls.append(msgspec.msgpack.decode(frames[1], type=UtilityCall))


def add(
    link: NativeLink,
    name: str = "r",
    rank: int | None = None,
    prompt: Sequence[int] = (1, 2),
    **options: Any,
) -> RequestRecord:
    """Send a request."""
    request = EngineCoreRequest(
        name, [*prompt], sampling_params=SamplingParams(max_tokens=9), data_parallel_rank=rank
    )
    record = link.core.requests.add(request, SINK, link.now, **options)
    link.run()
    return record


def of(kind: type, events: list[Any]) -> list[Any]:
    """Return the events of one kind."""
    return [event for event in events if isinstance(event, kind)]


def ended(events: list[Any]) -> list[tuple[str, type | None]]:
    """Return the requests that ended, and the kind of error of each."""
    return [(e.record.request_id, e.error and type(e.error)) for e in of(RequestEnded, events)]


def two() -> NativeLink:
    """Return a client of two engines that are ready."""
    link = NativeLink(0, 1)
    link.announce(0)
    link.announce(1)
    assert link.core.all_ready()
    return link
