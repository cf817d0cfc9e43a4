"""All connections: one per address, replaced when lost, retired when its address goes."""

from typing import Final

from enginecore_client._addresses.addresses import ClientAddresses, Endpoint
from enginecore_client._core.connection import Connection, Opening, Transport
from enginecore_client._core.events import Action, Announce, Close, Open, Subscribe
from enginecore_client._core.states import State
from enginecore_client.errors import EngineCoreError, ProtocolMismatchError
from enginecore_wire.control import Ready, RejectCode

GIVE_UP_SECONDS: Final = 30.0
"""An engine restarted in its place listens again within this; after it, fixed addresses at which
nobody answers are taken for outdated."""

RESOLVE_AGAIN_SECONDS: Final = 3.0
"""A name is resolved anew when its address does not answer this long."""

_REFUSES: Final = "an engine refuses this client: {}: {}"

Key = tuple[str, ...]


class Fleet:
    """The connections of one client; actions for the shell gather in `actions`.

    `sendable` are the links that may have frames to send. `stats_address` is the coordinator's.

    Args:
        transport: how engines are reached.
        advice: what to do if nobody answers, as addresses do not change; "" if they may.
    """

    def __init__(self, transport: Transport, advice: str = "") -> None:
        self.connections: dict[int, Connection] = {}
        self.actions: list[Action] = []
        self.sendable: set[int] = set()
        self._transport = transport
        self._advice = advice
        self._endpoints: dict[Key, Endpoint] = {}
        self._current: dict[Key, int] = {}
        self._ranks: dict[int, int] = {}
        self._served: set[int] = set()
        self._failures: dict[Key, int] = {}
        self._attempts: dict[Key, int] = {}
        self._reopen_at: dict[Key, float] = {}
        self._last_error: dict[Key, EngineCoreError] = {}
        self._links = 0
        self.stats_address: str | None = None
        self._stats_key = ""
        self._subscriptions = 0

    def update(self, addresses: ClientAddresses, now: float) -> list[Connection]:
        """Follow new addresses; return the connections whose address is gone."""
        wanted: dict[Key, Endpoint] = {
            endpoint.key: endpoint for endpoint in self._transport.endpoints(addresses)
        }
        gone = [key for key in self._endpoints if key not in wanted]
        retired = []
        for key in gone:
            link = self._current.pop(key, None)
            if link is not None:
                retired.append(self.connections[link])
            self._failures.pop(key, None)
            self._attempts.pop(key, None)
            self._reopen_at.pop(key, None)
            self._last_error.pop(key, None)
        self._endpoints = wanted
        for key, endpoint in wanted.items():
            if key in self._current:
                self._renew(key, endpoint, now)
            if key not in self._current and key not in self._reopen_at:
                self._open(key, now)
        stats = addresses.stats_update_address, addresses.stats_server_key
        if stats != (self.stats_address, self._stats_key):
            self.stats_address, self._stats_key = stats
            self.actions.append(Subscribe(self.stats_address, 0, self._stats_key))
        return retired

    def take_sendable(self) -> list[Connection]:
        """Return the connections that may have frames to send, each once."""
        links = self.sendable
        if not links:
            return []
        self.sendable = set()
        connections = self.connections
        return [connections[link] for link in links if link in connections]

    def announce(self, message: bytes | None) -> None:
        """Have something told to the coordinator, unless it is None."""
        if message is not None:
            self.actions.append(Announce(message))

    def subscribe_again(self) -> None:
        """Have the coordinator's address resolved and connected anew."""
        if self.stats_address is not None:
            self._subscriptions += 1
            self.actions.append(Subscribe(self.stats_address, self._subscriptions, self._stats_key))

    def is_current(self, connection: Connection) -> bool:
        """Say whether new requests may ever go to this connection."""
        return self._current.get(connection.place) == connection.link

    def successor(self, connection: Connection) -> Connection | None:
        """Return the connection that is now in the place of this one."""
        return self.connections.get(self._current.get(connection.place, -1))

    def holder(self, rank: int) -> Connection | None:
        """Return the connection that has the place of a rank now, ready or not."""
        for connection in self.connections.values():
            if self.is_current(connection) and self.rank(connection) == rank:
                return connection
        return None

    def rank(self, connection: Connection) -> int:
        """Return the data-parallel rank, as far as it is known."""
        return self._ranks.get(connection.link, connection.endpoint.index)

    def adopt(self, connection: Connection, ready: Ready) -> int:
        """Take over the rank that READY names, unless another live engine has it."""
        taken = {
            self.rank(other)
            for other in self.connections.values()
            if other is not connection and other.ready is not None and self.is_current(other)
        }
        choices = [ready.rank, connection.endpoint.index, *range(len(taken) + 1)]
        rank: int = next(choice for choice in choices if choice not in taken)
        self._ranks[connection.link] = rank
        self._served.add(rank)
        self._failures.pop(connection.place, None)
        self._last_error.pop(connection.place, None)
        return rank

    def working(self) -> list[Connection]:
        """Return the current connections that are Ready or Draining, in rank order."""
        found = [c for c in self.connections.values() if c.works and self.is_current(c)]
        return sorted(found, key=self.rank) if len(found) > 1 else found

    def sole(self) -> Connection | None:
        """Return the connection that works if there is no other at all."""
        if len(self.connections) == 1:
            for connection in self.connections.values():
                if connection.works and self.is_current(connection):
                    return connection
        return None

    def knows(self, rank: int) -> bool:
        """Say whether an address stands for this rank, or once did: a pod that is being replaced
        has none for a while."""
        return rank in self._served or self.expects(rank)

    def expects(self, rank: int) -> bool:
        """Say whether an address stands for this rank."""
        return any(
            self.rank(c) == rank for c in self.connections.values() if self.is_current(c)
        ) or any(endpoint.index == rank for endpoint in self._endpoints.values())

    def ranks(self) -> list[int]:
        """Return the ranks that addresses stand for, in order."""
        known = {key: self.connections[link] for key, link in self._current.items()}
        return sorted(
            self.rank(known[key]) if key in known else endpoint.index
            for key, endpoint in self._endpoints.items()
        )

    def has_rank(self, rank: int) -> bool:
        """Say whether an address stands for this rank, or something of it is left."""
        return self.expects(rank) or any(
            self.rank(connection) == rank for connection in self.connections.values()
        )

    def lost(self, connection: Connection, now: float) -> None:
        """Close a connection that ended, and plan another one to the same address."""
        key = connection.place
        current = self.is_current(connection)
        self.close(connection, farewell=connection.state is State.LOST)
        if current:
            del self._current[key]
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
            if connection.error is not None:
                self._last_error[key] = connection.error
            delay = self._transport.reopen_seconds(failures)
            if delay:
                self._reopen_at[key] = now + delay
            else:
                self._open(key, now, connection)

    def close(self, connection: Connection, *, farewell: bool) -> None:
        """Drop a connection for good."""
        del self.connections[connection.link]
        self._ranks.pop(connection.link, None)
        last = connection.last_frames() if farewell else ()
        self.actions.append(Close(connection.link, farewell, last))

    def tick(self, now: float) -> None:
        """Open what is due; resolve names anew whose address does not answer."""
        for key, when in list(self._reopen_at.items()):
            if now >= when:
                del self._reopen_at[key]
                self._open(key, now)
        for connection in list(self.connections.values()):
            if (
                connection.state is State.CONNECTING
                and connection.ready is None
                and connection.endpoint.named
                and now - connection.opened_at >= RESOLVE_AGAIN_SECONDS
                and self.is_current(connection)
            ):
                self._open_again(connection, now)

    def last_errors(self) -> list[EngineCoreError] | None:
        """Return why each engine was lost, or None if some engine was never lost."""
        errors = [self._last_error.get(key) for key in self._endpoints]
        found = [error for error in errors if error is not None]
        return found if found and len(found) == len(errors) else None

    def missing(self, now: float) -> list[str]:
        """Return one line per engine that is not ready: rank and where it stands."""
        if not self._endpoints:
            return ["no engine has an address yet"]
        lines = []
        for key, endpoint in self._endpoints.items():
            connection = self.connections.get(self._current.get(key, -1))
            if connection is None:
                error = self._last_error.get(key)
                reason = error.message if error else "not connected"
                lines.append(f"rank {endpoint.index} at {endpoint.input_address}: {reason}")
            elif not connection.works:
                lines.append(f"rank {self.rank(connection)} at {connection.describe(now)}")
        return lines

    def standing(self, now: float) -> str:
        """Return where the engines stand that are not ready, and what to do about it if that is
        known; "" if there are none."""
        lines = self.missing(now)
        if self._advice and self._unanswered(now, 0.0):
            lines.append(self._advice)
        return "; ".join(lines)

    def outdated(self, now: float) -> bool:
        """Say whether waiting is of no use: addresses are fixed, and for long nobody has answered
        at any."""
        return bool(self._advice) and len(self._unanswered(now, GIVE_UP_SECONDS)) == len(
            self._endpoints
        )

    def _unanswered(self, now: float, seconds: float) -> list[Connection]:
        current = (self.connections.get(link) for link in self._current.values())
        return [
            connection
            for connection in current
            if connection is not None
            and connection.state is State.CONNECTING
            and now - connection.since >= seconds
        ]

    def refusal(self) -> EngineCoreError | None:
        """Return why waiting for an engine is of no use, or None."""
        for connection in self.connections.values():
            refused = connection.refusal
            if refused is not None and refused.code == RejectCode.PROTOCOL_MISMATCH:
                place = connection.endpoint.input_address
                return ProtocolMismatchError(_REFUSES.format(place, refused.message))
        for key, error in self._last_error.items():
            if not error.retryable:
                return type(error)(_REFUSES.format(key[0], error.message))
        return None

    def _renew(self, key: Key, endpoint: Endpoint, now: float) -> None:
        """Take over what else is known of a place; a new server key counts at once where the old
        one has led to nothing."""
        connection = self.connections[self._current[key]]
        rekeyed = connection.endpoint.server_key != endpoint.server_key
        connection.endpoint = endpoint
        if rekeyed and connection.ready is None:
            self._endpoints[key] = endpoint
            self._open_again(connection, now)

    def _open_again(self, connection: Connection, now: float) -> None:
        del self._current[connection.place]
        self.close(connection, farewell=False)
        self._open(connection.place, now)

    def _open(self, key: Key, now: float, previous: Connection | None = None) -> None:
        self._links += 1
        endpoint = self._endpoints[key]
        connection = self._transport.open(Opening(self._links, endpoint, previous, now))
        self.connections[self._links] = connection
        self._current[key] = self._links
        attempt = self._attempts[key] = self._attempts.get(key, -1) + 1
        self.actions.append(Open(self._links, endpoint, connection.routing_id, attempt))
