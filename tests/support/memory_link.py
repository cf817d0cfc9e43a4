"""ClientCore joined to pods in memory: no socket, no thread, and a clock a test moves."""

from typing import Any

import msgspec

from enginecore_client._addresses.addresses import ClientAddresses
from enginecore_client._core.books import Ids
from enginecore_client._core.core import ClientCore, CoreSettings
from enginecore_client._core.events import Announce, Close, Event, Open, Subscribe
from enginecore_client._core.states import Channel
from enginecore_wire.codec import MsgpackDecoder, MsgpackEncoder
from enginecore_wire.control import ControlMessage, Hello, Ready
from enginecore_wire.coordination import LoadReport
from enginecore_wire.frames import decode_control, encode_control
from enginecore_wire.outputs import (
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    UtilityOutput,
    UtilityResult,
)
from enginecore_wire.requests import EngineCoreRequest, RequestType, UtilityCall


class Counting:
    """Random bytes that are not random: each call counts one up."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, size: int) -> bytes:
        self._count += 1
        return self._count.to_bytes(size, "big")


class MemoryPod:
    """What one link leads to: messages that came, and the session's counters."""

    def __init__(self, link: int, address: str) -> None:
        self.link = link
        self.address = address
        self.hellos: list[Hello] = []
        self.adds: list[EngineCoreRequest] = []
        self.aborts: list[str] = []
        self.calls: list[UtilityCall] = []
        self.others: list[Any] = []
        self.outputs_sent = 0
        self.connected = True


class MemoryLink:
    """A core and its pods. `now` is the clock.

    Args:
        addresses: names of the pods, one per rank.
        ready: whether pods answer HELLO with READY.
    """

    def __init__(self, *names: str, ready: bool = True, **settings: Any) -> None:
        self.now = 100.0
        self.pods: dict[int, MemoryPod] = {}
        self.closed: list[Close] = []
        self.subscribed: list[str | None] = []
        self.announced: list[bytes] = []
        self.answers = ready
        self.ranks: dict[str, int] = {}
        self.ready = Ready(engine={"max_model_len": 100}, vocab_size=1000, model_name="m")
        self._encoder = MsgpackEncoder()
        self._requests = MsgpackDecoder(EngineCoreRequest)
        self.core = ClientCore(CoreSettings(**settings), Ids(Counting()), lambda: 7e8, self.now)
        self.move(*names)

    def move(self, *names: str) -> list[Event]:
        """Publish other addresses."""
        addresses = {
            "input_address": [f"ipc://{name}/in" if name else "" for name in names],
            "output_address": [f"ipc://{name}/out" if name else "" for name in names],
        }
        self.core.set_addresses(ClientAddresses.from_dict(addresses), self.now)
        return self.run()

    def pod(self, name: str) -> MemoryPod:
        """Return the newest pod at an address."""
        return next(p for p in reversed(self.pods.values()) if p.address == f"ipc://{name}/in")

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

    def control(self, pod: MemoryPod, message: ControlMessage) -> list[Event]:
        """Have a pod send a control message."""
        self.core.links.receive(pod.link, list(encode_control(message)), self.now)
        return self.run()

    def raw(self, pod: MemoryPod, *frames: bytes) -> list[Event]:
        """Have a pod send any frames."""
        self.core.links.receive(pod.link, list(frames), self.now)
        return self.run()

    def outputs(self, pod: MemoryPod, **fields: Any) -> list[Event]:
        """Have a pod send an engine message."""
        pod.outputs_sent += 1
        return self.raw(pod, *self._encoder.encode(EngineCoreOutputs(**fields)))

    def token(
        self, pod: MemoryPod, index: int, *tokens: int, reason: FinishReason | None = None
    ) -> list[Event]:
        """Have a pod send tokens of the ADD number `index`."""
        name = pod.adds[index].request_id
        return self.outputs(pod, outputs=[EngineCoreOutput(name, [*tokens], finish_reason=reason)])

    def reply(self, pod: MemoryPod, index: int, value: Any = None, failure: str | None = None):
        """Have a pod answer the call number `index`."""
        result = None if failure else UtilityResult(None, value)
        return self.outputs(
            pod, utility_output=UtilityOutput(pod.calls[index].call_id, failure, result)
        )

    def loads(self, report: LoadReport) -> list[Event]:
        """Have the coordinator publish."""
        self.core.loads.receive([msgspec.msgpack.encode(report)], self.now)
        return self.run()

    def down(self, pod: MemoryPod) -> list[Event]:
        """Break both connections of a pod."""
        pod.connected = False
        for channel in Channel:
            self.core.links.disconnected(pod.link, channel, self.now)
        return self.run()

    def up(self, pod: MemoryPod) -> list[Event]:
        """Let both connections of a pod come back."""
        pod.connected = True
        for channel in Channel:
            self.core.links.connected(pod.link, channel, self.now)
        return self.run()

    def answer(self, pod: MemoryPod, **fields: Any) -> list[Event]:
        """Have a pod send READY."""
        self._answer(pod, **fields)
        return self.run()

    def _answer(self, pod: MemoryPod, **fields: Any) -> None:
        defaults = {
            "nonce": pod.hellos[-1].nonce,
            "outputs_sent": pod.outputs_sent,
            "rank": self.ranks.get(pod.address.split("/")[2], len(self.ranks)),
        }
        ready = msgspec.structs.replace(self.ready, **(defaults | fields))
        self.core.links.receive(pod.link, list(encode_control(ready)), self.now)

    def _actions(self) -> int:
        actions = self.core.take_actions()
        for action in actions:
            match action:
                case Open(link, endpoint):
                    name = endpoint.input_address.split("/")[2]
                    self.ranks.setdefault(name, endpoint.index)
                    self.pods[link] = MemoryPod(link, endpoint.input_address)
                    for channel in Channel:
                        self.core.links.connected(link, channel, self.now)
                case Close(link):
                    self.closed.append(action)
                    self.pods[link].connected = False
                case Subscribe(address):
                    self.subscribed.append(address)
                case Announce(message):
                    self.announced.append(message)
        return len(actions)

    def _frames(self) -> int:
        count = 0
        for connection in self.core.take_sendable():
            pod = self.pods[connection.link]
            while pod.connected and (item := connection.next_frames()) is not None:
                connection.sent()
                self._take(pod, *item)
                count += 1
        return count

    def _take(self, pod: MemoryPod, channel: Channel, frames: list[Any]) -> None:
        kind = frames[0]
        if kind == RequestType.ADD:
            pod.adds.append(self._requests.decode(frames[1], frames[2:]))
        elif kind == RequestType.ABORT:
            pod.aborts += msgspec.msgpack.decode(frames[1], type=list[str])
        elif kind == RequestType.UTILITY:
            pod.calls.append(msgspec.msgpack.decode(frames[1], type=UtilityCall))
        else:
            message = decode_control(frames)
            if isinstance(message, Hello):
                pod.hellos.append(message)
                if self.answers and channel is Channel.OUTPUT and len(pod.hellos) == 2:
                    self._answer(pod)
            else:
                pod.others.append(message)
