"""Engine outputs: read as little as needed, booked, and passed on untouched."""

import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec
import zmq

from enginecore_server.accounts import OutputAccounts
from enginecore_server.desk import ClientDesk
from enginecore_server.engine_link import EngineLink, Rests
from enginecore_server.exposed import ExposedSockets, Payload, payload
from enginecore_server.heads import OutputsHead, UtilityHead, decoder
from enginecore_server.sessions import Session
from enginecore_server.state import ServerState
from enginecore_wire.outputs import ENGINE_CORE_DEAD
from enginecore_wire.requests import RequestType, UtilityCall

_OWN_SLOT: Final = 0
_NOTHING: Final[list[zmq.Frame]] = []
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
        self._accounts = OutputAccounts(state)
        self.heard_at = time.monotonic()

    def output_messages(self, firsts: list[zmq.Frame], rests: Rests, since: float) -> None:
        """Read a burst of engine messages, send it on, and book what it said, in this order.

        Messages sent one right after the other wake the I/O thread less often; booking is the
        least urgent. A burst is timed as a whole: each of its messages counts as one that took
        from `since` to the end of its last sending, which is no less than it really took.
        """
        heads: list[OutputsHead] = []
        leaving: list[tuple[Session, Payload, list[zmq.Frame]]] = []
        dead = False
        for index, first in enumerate(firsts):
            body = payload(first)
            try:
                head = self._decode(body)  # type: ignore[arg-type]
            except (msgspec.DecodeError, RecursionError):
                dead |= self._unreadable(first)
                continue
            owner = self._owner(head, first)
            if owner is not None:
                leaving.append((owner, body, rests.get(index, _NOTHING)))
            elif head.outputs:
                self._tally.outputs_dropped += 1
            elif head.scheduler_stats is None:
                continue
            heads.append(head)
        relayed = 0
        for owner, body, rest in leaving:
            if owner.ended:  # it was too slow for the ones before: no output may follow a lost one
                self._tally.outputs_dropped += 1
            else:
                self._exposed.relay(owner, body, rest)
                relayed += 1
        if heads:
            self.heard_at = self._accounts.book(heads)
        if relayed:
            self._tally.outputs_relayed += relayed
            self._tally.relay.observe_all(self.heard_at - since, relayed)
        if dead:
            self._on_dead()

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

    def _owner(self, head: OutputsHead, first: zmq.Frame) -> Session | None:
        """Return the client to which a message goes, or None if it goes to none."""
        owner: Session | None = None
        for output in head.outputs:
            request = self._requests.get(output.request_id)
            if request is not None:
                owner = request.session
                break
        if head.utility_output is not None:
            owner = self._answered(self._link.slot_of(first), head.utility_output) or owner
        return owner

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
        self._state.adapters.answered(slot, reply)
        self._state.sleep.answered(slot, reply)
        session = self._state.book.at_slot(slot)
        if session is None or reply.call_id not in session.calls:
            return None
        session.calls.remove(reply.call_id)
        return session

    def _unreadable(self, first: zmq.Frame) -> bool:
        """Return whether a message that is no output says that the engine's loop has died."""
        if first.bytes == ENGINE_CORE_DEAD:
            return True
        self._tally.unreadable_outputs += 1
        _log.error("the engine sent a message of %d bytes that is no output", len(first))
        return False
