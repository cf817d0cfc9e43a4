"""What happens at the sockets of engines, as far as it concerns one client."""

import msgspec

from enginecore_client._core.delivery import Delivery
from enginecore_client._core.endings import Endings
from enginecore_client._core.fleet import Fleet
from enginecore_client._core.states import FINAL, Channel
from enginecore_client.errors import AuthenticationError
from enginecore_wire.frames import Frame
from enginecore_wire.outputs import EngineCoreOutputs


class Links:
    """Takes in what a shell sees of each link; one that is not wanted any more is ignored.

    Args:
        fleet: the engines there are.
        delivery: brings messages to the records they concern.
        endings: what ends with an engine.
    """

    def __init__(self, fleet: Fleet, delivery: Delivery, endings: Endings) -> None:
        self._fleet = fleet
        self._delivery = delivery
        self._endings = endings

    def connected(self, link: int, channel: Channel, now: float, *, at_once: bool = False) -> None:
        """Take note of HANDSHAKE_SUCCEEDED on one socket; `at_once`: see Connection.connected."""
        connection = self._fleet.connections.get(link)
        if connection is not None:
            connection.cut_since = None
            connection.connected(channel, now, at_once=at_once)
            self._fleet.sendable.add(link)

    def disconnected(self, link: int, channel: Channel, now: float) -> None:
        """Take note of DISCONNECTED on one socket."""
        connection = self._fleet.connections.get(link)
        if connection is not None:
            connection.disconnected(channel, now)
            if connection.state in FINAL:
                self._endings.lost(connection, now)

    def announced(self, link: int, payload: Frame, now: float) -> None:
        """Take in the READY payload of an engine that dialled in.

        Whoever announces itself while the engine of its rank is in use takes its place: the
        socket lets nobody in under a name before the one who had it is gone.
        """
        connection = self._fleet.connections.get(link)
        if connection is not None and connection.ready is not None:
            connection.lose("another process of its rank took its place", now)
            self._endings.lost(connection, now)
            connection = self._fleet.successor(connection)
        if connection is None:
            return
        try:
            ready = connection.announced(payload, now)
        except msgspec.DecodeError:
            self._delivery.unreadable += 1
            return
        if ready is not None:
            self._delivery.ready(connection, ready, now)
            self._fleet.sendable.add(connection.link)
        elif connection.state in FINAL:
            self._endings.lost(connection, now)

    def staged(self, rank: int, stage: str, now: float) -> None:
        """Take note how far the engine of a rank has come that is not ready."""
        connection = self._fleet.holder(rank)
        if connection is not None:
            connection.staged(stage, now)

    def exited(self, rank: int, ending: str, now: float) -> None:
        """Take note that the process of a rank ended; `ending` says how."""
        connection = self._fleet.holder(rank)
        if connection is not None:
            connection.exited(ending, now)
            if connection.state in FINAL:
                self._endings.lost(connection, now)

    def listened(self, link: int, listens: bool) -> None:
        """Take note whether anybody listens at an engine's address, be it an engine or not."""
        connection = self._fleet.connections.get(link)
        if connection is not None:
            connection.listened = listens
            if not listens:
                connection.cut_since = None  # what ended a handshake before is gone

    def refused(self, link: int, error: AuthenticationError | None, now: float) -> None:
        """Take note that the two sides did not come to terms over keys; None: the other side ended
        the handshake without a word."""
        connection = self._fleet.connections.get(link)
        if connection is None:
            return
        if error is None:
            connection.cut_off(now)
        else:
            connection.refused(error, now)
        if connection.state in FINAL:
            self._endings.lost(connection, now)

    def is_open(self, link: int) -> bool:
        """Say whether a link is still wanted."""
        return link in self._fleet.connections

    def unreachable(self, link: int, reason: str) -> None:
        """Take note that no connection can even be tried."""
        connection = self._fleet.connections.get(link)
        if connection is not None:
            connection.name_error = reason

    def receive(self, link: int, frames: list[Frame], now: float) -> None:
        """Take in one message from an engine's output socket."""
        connection = self._fleet.connections.get(link)
        if connection is None:
            return
        self._delivery.receive(connection, frames, now)
        if connection.ended:
            self._endings.lost(connection, now)
            return
        if connection.waits_to_send:
            self._fleet.sendable.add(link)
        if not connection.requests:
            self._endings.close_retired()

    def take_outputs(self, link: int, message: EngineCoreOutputs, now: float) -> None:
        """Take in a message that never was bytes: of an engine in this process."""
        self._delivery.outputs(self._fleet.connections[link], message, now)

    def tick(self, now: float, *, late: bool) -> None:
        """Let time pass: liveness of each engine, replacements of those that are lost.

        Args:
            now: monotonic seconds.
            late: whether this process stood still, and not the engines.
        """
        for connection in list(self._fleet.connections.values()):
            if late:
                connection.overslept(now)
            connection.tick(now)
            if connection.state in FINAL:
                self._endings.lost(connection, now)
            else:
                self._fleet.sendable.add(connection.link)
        self._fleet.tick(now)
