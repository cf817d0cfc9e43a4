"""An engine in this process, in the place where other clients have sockets.

Requests are checked and encoded as for any engine, and decoded again for this one: it gets what
an engine behind a wire would get, and shares no list with its caller. Outputs stay objects.
"""

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Final

import msgspec

from enginecore_client._addresses.addresses import ClientAddresses, Endpoint
from enginecore_client._core.connection import Connection, Opening, Transport
from enginecore_client._core.states import NATIVE_TRANSITIONS, Channel, Move, State
from enginecore_client._shell.background import BackgroundResources
from enginecore_client._sockets.resources import HostUnreachableError, Socket
from enginecore_client.errors import EngineDeadError, RequestRejectedError
from enginecore_wire.codec import MsgpackDecoder, MsgpackEncoder
from enginecore_wire.control import ControlMessage, Limits, Ready
from enginecore_wire.engine import EngineLike
from enginecore_wire.frames import Frame
from enginecore_wire.outputs import EngineCoreOutputs, UtilityOutput, UtilityResult
from enginecore_wire.requests import EngineCoreRequest, RequestType, UtilityCall

LOCAL_ADDRESSES: Final = ClientAddresses(("inproc://engine",), ("inproc://engine",))
"""One engine, at an address nobody connects to."""

_LOG = logging.getLogger(__name__)

_NEVER: Final = float("inf")


class LocalEngine:
    """Carries messages between a client and an engine, both in this process (a `Sockets`).

    Attributes:
        engine: the engine; None once it was shut down.
        failure: what broke it, if something did.
        refusal: why it refused the last request, until somebody takes note.
    """

    def __init__(self, engine: EngineLike) -> None:
        self.engine: EngineLike | None = engine
        self.failure: Exception | None = None
        self.refusal: RequestRejectedError | None = None
        self.link: int | None = None
        self._news: deque[tuple[int, Channel, list[Frame]]] = deque()
        self._requests = MsgpackDecoder(EngineCoreRequest)
        self._calls = MsgpackDecoder(UtilityCall)
        self._encoder = MsgpackEncoder()

    def step(self) -> EngineCoreOutputs | None:
        """Compute one step; return what it has for client 0.

        Raises:
            HostUnreachableError: the engine broke; `failure` says how.
        """
        assert self.engine is not None
        try:
            return self.engine.step().get(0)
        except Exception as error:
            raise self._broken(error) from error

    @property
    def has_work(self) -> bool:
        """Whether a step would compute anything."""
        return self.engine is not None and self.failure is None and self.engine.has_work()

    def open(
        self,
        link: int,
        routing_id: bytes,  # noqa: ARG002
        addresses: tuple[str, str],  # noqa: ARG002
        server_key: str = "",  # noqa: ARG002 - engines here know no CURVE
    ) -> None:
        """Take the link's number; the engine is ready at once."""
        self.link = link
        self._news.append((link, Channel.INPUT, [b""]))

    def close(self, link: int, *, farewell: bool) -> None:  # noqa: ARG002 - nobody to tell
        """Forget the link."""
        if self.link == link:
            self.link = None

    def sources(self) -> list[int]:
        """Return the one link."""
        return [] if self.link is None else [self.link]

    def messages(self, source: int) -> Iterator[tuple[int, Channel, list[Frame]]]:  # noqa: ARG002
        """Yield replies to calls, and the word that the engine is ready."""
        while self._news:
            yield self._news.popleft()

    def changes(self, source: int, channel: Channel) -> Iterator[tuple[int, bool]]:  # noqa: ARG002
        """Yield nothing: there is no connection."""
        return iter(())

    def send(self, link: int, channel: Channel, frames: list[Frame]) -> bool:  # noqa: ARG002
        """Give the engine one message.

        Raises:
            HostUnreachableError: the engine broke; `failure` says how.
        """
        assert self.engine is not None
        kind, body, *aux = frames
        try:
            if kind == RequestType.ADD:
                self._add(self.engine, self._requests.decode(body, aux))
            elif kind == RequestType.ABORT:
                self.engine.abort_requests(_IDS.decode(body))
            elif kind == RequestType.UTILITY:
                self._call(self.engine, link, self._calls.decode(body, aux))
        except Exception as error:
            raise self._broken(error) from error
        return True

    def subscribe(self, address: str | None, server_key: str = "") -> None:
        """Do nothing: there is no coordinator."""

    def announce(self, message: bytes) -> None:
        """Do nothing: there is no coordinator."""

    def loads(self) -> Iterator[list[Frame]]:
        """Yield nothing: there is no coordinator."""
        return iter(())

    def close_all(self, *, farewell: bool = True) -> None:  # noqa: ARG002 - nobody to tell
        """Shut the engine down and let go of it."""
        engine, self.engine = self.engine, None
        if engine is not None:
            try:
                engine.shutdown()
            except Exception:  # noqa: BLE001 - the client ends all the same
                _LOG.exception("the engine's shutdown failed")

    def _add(self, engine: EngineLike, request: EngineCoreRequest) -> None:
        try:
            engine.add_request(request)
        except ValueError as error:
            field = str(error).partition(":")[0]
            name = request.external_req_id or request.request_id
            self.refusal = RequestRejectedError(str(error), field=field, request_ids=[name])
            self.refusal.__cause__ = error

    def _call(self, engine: EngineLike, link: int, call: UtilityCall) -> None:
        output = UtilityOutput(call.call_id)
        try:
            output.result = UtilityResult(None, engine.call(call.method, call.args))
            frames = self._encoder.encode(EngineCoreOutputs(utility_output=output))
        except Exception as error:  # noqa: BLE001 - whatever it was, this call alone failed
            text = f"Call to {call.method} method failed: {error}"
            frames = self._encoder.encode(
                EngineCoreOutputs(utility_output=UtilityOutput(call.call_id, text))
            )
        self._news.append((link, Channel.OUTPUT, list(frames)))

    def _broken(self, error: Exception) -> HostUnreachableError:
        self.failure = error
        return HostUnreachableError(str(error))


class InprocResources(BackgroundResources):
    """The engine and what is to be done about it once; holds no client.

    `lock` guards engine and driver: one thread at a time steps, adds or calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()
        self._posted: deque[Callable[[], None]] = deque()

    def __call__(self) -> None:
        """End everything that is unfinished and shut the engine down."""
        with self.lock:
            self._posted.clear()
            if self.driver is not None:
                self.driver.shut()

    def watch(self, socket: Socket, callback: Callable[[], None]) -> None:
        """Do nothing: there are no sockets."""

    def unwatch(self, socket: Socket) -> None:
        """Do nothing: there are no sockets."""

    def again(self, callback: Callable[[], None]) -> None:
        """Do nothing: who steps looks at everything."""

    def post(self, callback: Callable[[], None]) -> None:
        """Call `callback` at the next turn. The garbage collector may call this anywhere."""
        self._posted.append(callback)

    def catch_up(self) -> None:
        """Do what was posted; the lock is held."""
        while self._posted:
            self._posted.popleft()()


class LocalConnection(Connection):
    """What the core knows of the engine in this process: it is ready until it breaks."""

    transitions: ClassVar[Mapping[State, Mapping[Move, State]]] = NATIVE_TRANSITIONS

    def __init__(self, opening: Opening, local: LocalEngine, ready: Ready) -> None:
        super().__init__(opening.link, opening.endpoint, b"", opening.now)
        self._local = local
        self._ready = ready

    def connected(self, channel: Channel, now: float, *, at_once: bool = False) -> None:
        """Do nothing: there is no connection."""

    def disconnected(self, channel: Channel, now: float) -> None:  # noqa: ARG002
        """Take note that the engine broke."""
        error = EngineDeadError(f"the engine broke: {self._local.failure!r}")
        error.__cause__ = self._local.failure
        self._end(Move.DIED, error, now)

    def announced(self, payload: Frame, now: float) -> Ready | None:  # noqa: ARG002
        """Return what is known of the engine: it is ready from the beginning."""
        self.ready = self._ready
        self._move(Move.READY, now)
        return self.ready

    def receive(self, frames: list[Frame], now: float) -> ControlMessage | None:  # noqa: ARG002
        """Take a reply in."""
        self.received += 1
        return None

    def tick(self, now: float) -> None:
        """Do nothing: the engine computes when it is stepped, and cannot fall silent."""

    def overslept(self, now: float) -> None:
        """Do nothing, as in `tick`."""

    def next_frames(self) -> tuple[Channel, list[Frame]] | None:
        """Return the next frames for the engine, or None."""
        if self.outbox and self.state is State.READY:
            return Channel.INPUT, list(self.outbox[0].frames)
        return None

    def sent(self) -> None:
        """Take note that the engine has what next_frames returned."""
        outgoing = self.outbox.popleft()
        if outgoing.record is not None:
            outgoing.record.sent = True

    def describe(self, now: float) -> str:  # noqa: ARG002
        """Return where it stands, for an error's text."""
        return f"in this process: {self.state}"


class LocalTransport(Transport):
    """One engine in this process, never to be replaced.

    Args:
        local: carries the messages.
        ready: what is known of the engine.
    """

    def __init__(self, local: LocalEngine, ready: Ready) -> None:
        self._local = local
        self._ready = ready

    def endpoints(self, addresses: ClientAddresses) -> tuple[Endpoint, ...]:
        """Return the one place."""
        return addresses.endpoints

    def open(self, opening: Opening) -> Connection:
        """Return the connection."""
        return LocalConnection(opening, self._local, self._ready)

    def reopen_seconds(self, failures: int) -> float:  # noqa: ARG002
        """Never: what broke stays broken."""
        return _NEVER


def ready_of(engine: EngineLike, model_name: str) -> Ready:
    """Return what an engine server would say of an engine."""
    limits = engine.limits
    return Ready(
        engine={"max_model_len": limits.max_model_len, "supports_lora": limits.supports_lora},
        vocab_size=limits.vocab_size,
        hidden_size=limits.hidden_size,
        modalities=tuple(sorted(limits.modalities)),
        max_logprobs=limits.max_logprobs,
        model_name=model_name,
        limits=Limits(
            frame_bytes=sys.maxsize,
            in_flight=sys.maxsize,
            in_flight_total=sys.maxsize,
            prompt_tokens=limits.prompt_tokens,
        ),
    )


_IDS: Final = msgspec.msgpack.Decoder(list[str])
