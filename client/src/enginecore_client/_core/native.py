"""An engine that dials in: vLLM's native protocol, without its sockets.

The engine announces itself with vLLM's READY payload and from then on takes ADD, ABORT and
UTILITY. There are no sessions: nobody counts messages, and an engine does not announce itself
again to a client it has lost sight of. Two things follow:

- a connection that breaks ends everything on it, because what it carried may be gone;
- an engine whose connection comes back is asked whether it lives, told to forget what it had,
  and used with the facts it announced before.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from enginecore_client._core.admission import unusable
from enginecore_client._core.connection import Connection, Opening
from enginecore_client._core.native_options import Facts
from enginecore_client._core.states import NATIVE_TRANSITIONS, Channel, Move, State
from enginecore_client.errors import (
    EngineCoreError,
    EngineDeadError,
    ProtocolMismatchError,
)
from enginecore_wire.codec import MsgpackDecoder
from enginecore_wire.control import (
    DEFAULT_MAX_LOGPROBS,
    ControlMessage,
    Limits,
    Phase,
    PhaseChange,
    Ready,
)
from enginecore_wire.dialects import confirm
from enginecore_wire.frames import Frame
from enginecore_wire.handshake import engine_identity
from enginecore_wire.layouts import LayoutError
from enginecore_wire.outputs import is_last_word
from enginecore_wire.requests import RequestType, UtilityCall

_PROBE_METHOD: Final = "is_sleeping"
"""Answered between two steps by every engine, whatever else it is doing."""


CUT_SECONDS: Final = 0.2
"""How long outputs may still come from an engine that is otherwise gone."""


class Cut(NamedTuple):
    """An end that waits for what is still to be read; `at` is monotonic seconds."""

    at: float
    move: Move
    error: EngineCoreError


class NativeConnection(Connection):
    """State, liveness and outbox of one engine that dials in.

    Args:
        opening: its number and place; an earlier connection that broke leaves its facts.
        facts: what the client is and knows.
        probe_id: the call id of its probes, no other call has it.
    """

    transitions = NATIVE_TRANSITIONS

    def __init__(self, opening: Opening, facts: Facts, probe_id: int) -> None:
        rank = opening.endpoint.index
        super().__init__(opening.link, opening.endpoint, engine_identity(rank), opening.now)
        self._facts = facts
        self._probe_id = probe_id
        self._probe: list[Frame] = [
            RequestType.UTILITY,
            _ENCODER.encode(UtilityCall(facts.client_index, probe_id, _PROBE_METHOD, [])),
        ]
        self._first: deque[list[Frame]] = deque()
        self._asked = False
        self._heard_at = opening.now
        self._cut: Cut | None = None
        self._problem = ""
        self._stage = "has not dialled in and said READY"
        self._stage_at = opening.now
        self.former: Ready | None = None
        self.unfinished: list[str] = []
        if isinstance(opening.previous, NativeConnection):
            self._follow(opening.previous)
        elif facts.options.running_facts is not None:
            self.former = self._understood(facts.options.running_facts)

    def _follow(self, previous: "NativeConnection") -> None:
        """Keep of an earlier connection what is needed to use its process again."""
        if previous.error is not None:
            self._problem = previous.error.message
        if previous.state is State.LOST:
            self.former = previous.ready or previous.former
            self.dialect = previous.dialect
            self.unfinished = previous.unfinished

    @property
    def accepting(self) -> bool:
        """Say whether a new request may go here."""
        return self.state is State.READY and self._cut is None

    def announced(self, payload: Frame, now: float) -> Ready | None:
        """Take the READY payload; return what it says, or None if it cannot be used.

        Raises:
            msgspec.DecodeError: it is not a map; nothing else is harmed.
        """
        try:
            engine = _FACTS.decode(payload) if len(payload) else {}
        except msgspec.DecodeError as error:
            self._problem = f"its READY payload cannot be read ({error})"
            raise
        self._first.clear()
        self.unfinished = []
        try:
            ready = self._understood(engine)
        except LayoutError as error:
            self._end(Move.GONE, ProtocolMismatchError(str(error)), now)
            return None
        return self._answered(ready, now)

    def staged(self, stage: str, now: float) -> None:
        """Take note how far the engine's process has come."""
        self._stage, self._stage_at, self._problem = stage, now, ""

    def connected(self, channel: Channel, now: float, *, at_once: bool = False) -> None:
        """Do nothing: who connected is known once it says something."""

    def disconnected(self, channel: Channel, now: float) -> None:
        """Take note that one of its connections broke.

        With the one to the output socket everything it carried has been read. With the one to
        the input socket there may be more to come, so the end waits a moment for the other.
        """
        if self.state is not State.READY:
            self._first.clear()
            self._asked = False
            return
        text = f"the engine is gone: its connection to the {channel.value} socket closed"
        self._cut = self._cut or Cut(now, Move.GONE, EngineDeadError(text))
        if channel is Channel.OUTPUT:
            self._end(self._cut.move, self._cut.error, now)

    def exited(self, ending: str, now: float) -> None:
        """Take note that the engine's process ended, after which there may be more to read."""
        error = EngineDeadError(f"the engine process {ending}")
        if self.state is State.READY:
            self._cut = Cut(self._cut.at if self._cut else now, Move.DIED, error)
        else:
            self._end(Move.DIED, error, now)

    def receive(self, frames: list[Frame], now: float) -> ControlMessage | None:
        """Take a message in; see Connection.receive."""
        if is_last_word(frames):
            self._end(Move.DIED, EngineDeadError("the engine process died"), now)
            return None
        if self.state is State.READY:
            self._heard_at = now
            self._asked = False
            self.received += 1
            return None
        if self.former is not None and self._is_reply(frames[0]):
            return self._answered(self.former, now)
        return _NOT_READY

    def tick(self, now: float) -> None:
        """Let time pass: ask an engine that says nothing, give it up when it stays silent."""
        if self._cut is not None and now - self._cut.at >= CUT_SECONDS:
            self._end(self._cut.move, self._cut.error, now)
        seconds = self._facts.options.probe_seconds
        if self.state is not State.READY:
            self._try_again()
        elif seconds is None:
            return
        elif self.calls:
            self._heard_at = now
        elif now - self._heard_at >= seconds:
            self.lose(f"it was silent for {now - self._heard_at:.1f} s and answered no probe", now)
        elif now - self._heard_at >= seconds / 2 and not self._asked:
            self._asked = True
            self._first.append(self._probe)

    def overslept(self, now: float) -> None:
        """Forgive the engine a silence during which this process did not run."""
        self._heard_at = now

    def next_frames(self) -> tuple[Channel, list[Frame]] | None:
        """Return the next frames to send and their socket, or None."""
        if self._cut is not None:
            return None
        if self._first:
            return Channel.INPUT, list(self._first[0])
        if self.outbox and self.state is State.READY:
            return Channel.INPUT, list(self.outbox[0].frames)
        return None

    def sent(self) -> None:
        """Take note that what next_frames returned was handed to ZMQ."""
        if self._first:
            self._first.popleft()
            self._asked = True
            return
        outgoing = self.outbox.popleft()
        if outgoing.record is not None:
            outgoing.record.sent = True

    def last_frames(self) -> Sequence[Frame]:
        """Have the engine forget what it has: it knows no BYE, and would go on to compute it."""
        if self.state is not State.READY or self._cut is not None or not self.requests:
            return ()
        return RequestType.ABORT, _ENCODER.encode(list(self.requests))

    def describe(self, now: float) -> str:
        """Return where an engine that is not ready stands, for an error's text."""
        where = self.endpoint.input_address
        problem = f" ({self._problem})" if self._problem else ""
        if self.former is not None:
            return f"{where}: lost {now - self.since:.0f} s ago and not back{problem}"
        return f"{where}: {self._stage} for {now - self._stage_at:.0f} s{problem}"

    def _try_again(self) -> None:
        """Ask an engine whose connection broke, as soon as it is connected again."""
        if self.former is None or self._first or self._asked:
            return
        if self.unfinished:
            self._first.append([RequestType.ABORT, _ENCODER.encode(self.unfinished)])
        self._first.append(self._probe)

    def _end(self, move: Move, error: EngineCoreError, now: float) -> None:
        self.unfinished = self.unfinished or list(self.requests)
        super()._end(move, error, now)

    def _answered(self, ready: Ready, now: float) -> Ready | None:
        wrong = unusable(ready)
        if wrong is not None:
            text = f"the engine's READY payload cannot be used: {wrong}; repair the engine"
            self._end(Move.GONE, ProtocolMismatchError(text), now)
            return None
        self.ready = ready
        self._problem = ""
        self.former = None
        self._asked = False
        self.unfinished = []
        self._heard_at = now
        self._move(Move.READY, now)
        return ready

    def _understood(self, engine: dict[str, Any]) -> Ready:
        """Return what an engine's facts stand for, and speak its dialect from now on.

        Raises:
            LayoutError: this client does not.
        """
        options = self._facts.options
        reported = str(engine.get("vllm_version") or "")
        self.dialect = confirm(options.engine_version or None, reported)
        return Ready(
            layout=self.dialect.layout,
            name=f"engine {self.endpoint.index}",
            rank=self.endpoint.index,
            slot=self._facts.client_index,
            engine=engine,
            vocab_size=options.vocab_size or 0,
            hidden_size=options.hidden_size,
            modalities=options.modalities,
            max_logprobs=(
                DEFAULT_MAX_LOGPROBS if options.max_logprobs is None else options.max_logprobs
            ),
            model_name=options.model_name,
            runtime_version=reported or options.engine_version,
            limits=Limits(in_flight=options.in_flight),
        )

    def _is_reply(self, body: Frame) -> bool:
        try:
            reply = _REPLY.decode(body).utility_output
        except msgspec.DecodeError:
            return False
        return reply is not None and reply[:1] == [self._probe_id]


class _Reply(msgspec.Struct, array_like=True):
    """EngineCoreOutputs, read as far as a probe's reply."""

    engine_index: Any = None
    outputs: Any = None
    scheduler_stats: Any = None
    timestamp: Any = None
    utility_output: list[Any] | None = None


_ENCODER: Final = msgspec.msgpack.Encoder()
_FACTS: Final = MsgpackDecoder(dict[str, Any])
_REPLY: Final = MsgpackDecoder(_Reply)
_NOT_READY: Final = PhaseChange(phase=Phase.LOADING)
"""What a message stands for that comes from an engine which is not (or no more) in use."""
