"""Engine outputs: read as little as needed, booked, and passed on untouched."""

import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec
import zmq

from enginecore_server.desk import ClientDesk
from enginecore_server.engine_link import EngineLink
from enginecore_server.exposed import ExposedSockets
from enginecore_server.heads import OutputHead, OutputsHead, UtilityHead, decoder
from enginecore_server.sessions import Request, Session
from enginecore_server.state import ServerState
from enginecore_server.tally import FINISH_NAMES
from enginecore_wire.outputs import ENGINE_CORE_DEAD
from enginecore_wire.requests import RequestType, UtilityCall

_OWN_SLOT: Final = 0
_OTHER_FINISH: Final = "other"
_ENCODER: Final = msgspec.msgpack.Encoder()

_log = logging.getLogger(__name__)


class OutputRelay:
    """Takes messages off the engine's output connections.

    A message belongs to the client whose requests it names: the engine makes one message per
    client and step, ids are unique among all clients, and fences keep late outputs of aborted
    ids apart. Utility replies carry the caller's own call id, so their owner is told by the
    connection they came through.

    Args:
        state: the books.
        link: the engine.
        exposed: the clients.
        desk: sends the fences that follow fences.
        on_dead: called when the engine says that its loop has died.

    `heard_at` is when the engine last showed that it computes: replies to the server's own
    calls do not count.
    """

    def __init__(
        self,
        state: ServerState,
        link: EngineLink,
        exposed: ExposedSockets,
        desk: ClientDesk,
        on_dead: Callable[[], None],
    ) -> None:
        self._state = state
        self._link = link
        self._exposed = exposed
        self._desk = desk
        self._on_dead = on_dead
        self._decode = decoder().decode
        self._requests = state.book.requests
        self._tally = state.tally
        self.heard_at = time.monotonic()

    def output_frames(self, first: zmq.Frame, rest: list[zmq.Frame]) -> None:
        """Book and pass on one engine message."""
        try:
            head = self._decode(first)  # type: ignore[arg-type]
        except (msgspec.DecodeError, RecursionError):
            self._unreadable(first)
            return
        session: Session | None = None
        for output in head.outputs:
            request = self._requests.get(output.request_id)
            if request is not None:
                session = request.session
                break
        if head.utility_output is not None:
            session = self._answered(self._link.slot_of(first), head.utility_output) or session
        if session is not None:
            self._exposed.relay(session, first, rest)
            self._tally.outputs_relayed += 1
        elif head.outputs:
            self._tally.outputs_dropped += 1
        elif head.scheduler_stats is None:
            return
        self._book(head)

    def ask(self, method: str, answer: Callable[[UtilityHead], None]) -> None:
        """Make a utility call of the server's own.

        Args:
            method: the call, without arguments.
            answer: called with the reply.
        """
        call_id = self._state.next_call_id()
        self._state.own_calls[call_id] = answer
        call = UtilityCall(_OWN_SLOT, call_id, method, [])
        self._link.send(RequestType.UTILITY, _ENCODER.encode(call))

    def _book(self, head: OutputsHead) -> None:
        """Note what a message said; this comes after passing it on, which is urgent."""
        self.heard_at = now = time.monotonic()
        if head.scheduler_stats is not None:
            self._state.load.report(head.scheduler_stats, head.timestamp)
        for output in head.outputs:
            request = self._requests.get(output.request_id)
            if request is not None:
                self._book_output(request, output, now)

    def _book_output(self, request: Request, output: OutputHead, now: float) -> None:
        tally = self._tally
        if output.new_token_ids:
            tally.generation_tokens += len(output.new_token_ids)
            if request.first_at:
                tally.between_tokens.observe(now - request.last_at)
            else:
                request.first_at = now
                tally.prompt_tokens += request.prompt_tokens
                tally.first_token.observe(now - request.arrived)
            request.last_at = now
        if output.finish_reason is not None:
            tally.finished[FINISH_NAMES.get(output.finish_reason, _OTHER_FINISH)] += 1
            tally.whole_request.observe(now - request.arrived)
            self._state.book.forget(request.session, [request.request_id])

    def _answered(self, slot: int | None, reply: UtilityHead) -> Session | None:
        """Return the session that is to get a utility reply, or None if none is."""
        if slot is None:
            return None
        if slot == _OWN_SLOT:
            answer = self._state.own_calls.pop(reply.call_id, None)
            if answer is not None:
                answer(reply)
            return None
        fences = self._state.fences
        if fences.expects(slot, reply.call_id):
            free, next_call = fences.passed(slot)
            if free:
                self._state.book.release_slot(slot)
            if next_call is not None:
                self._desk.send_fence(slot, next_call)
            return None
        session = self._state.book.at_slot(slot)
        if session is None or reply.call_id not in session.calls:
            return None
        session.calls.remove(reply.call_id)
        return session

    def _unreadable(self, first: zmq.Frame) -> None:
        if first.bytes == ENGINE_CORE_DEAD:
            self._on_dead()
            return
        self._tally.unreadable_outputs += 1
        _log.error("the engine sent a message of %d bytes that is no output", len(first))
