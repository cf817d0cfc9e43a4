"""Connects sockets to addresses that may hold names; names are looked up elsewhere."""

from collections.abc import Callable

import zmq

from enginecore_client._addresses.addresses import host_name
from enginecore_client._core.core import ClientCore
from enginecore_client._core.events import Open
from enginecore_client._sockets.resources import Lookup, Sockets
from enginecore_client.errors import AuthenticationError


class Dialer:
    """Opens what the core wants opened, once its names are known.

    Args:
        core: told what cannot be reached.
        sockets: what is connected.
        post: runs a callable where the core lives; callable from any thread.
        on_refused: told of a link that cannot be opened for want of a key; may be called while
            actions are carried out.
    """

    def __init__(
        self,
        core: ClientCore,
        sockets: Sockets,
        post: Callable[[Callable[[], None]], None],
        on_refused: Callable[[int, AuthenticationError], None],
    ) -> None:
        self._core = core
        self._on_refused = on_refused
        self._sockets = sockets
        self._post = post
        self._wanted_feed: tuple[str | None, int, str] = (None, 0, "")

    def open(self, action: Open) -> None:
        """Connect a link to its engine."""
        if not action.endpoint.named:
            self._connect(action, action.endpoint.addresses)
            return

        def found(result: tuple[str, ...] | OSError) -> None:
            self._post(lambda: self._resolved(action, result))

        Lookup(found).start(action.endpoint.addresses, action.attempt)

    def subscribe(self, address: str | None, attempt: int, server_key: str) -> None:
        """Take load reports from a coordinator from now on, or from nobody."""
        self._sockets.subscribe(None)
        wanted = self._wanted_feed = address, attempt, server_key
        if address is None or host_name(address) is None:
            self._sockets.subscribe(address, server_key)
            return

        def use(ip_address: str) -> None:
            if self._wanted_feed == wanted:  # a slow look-up may end after a later one
                self._sockets.subscribe(ip_address, server_key)

        def found(result: tuple[str, ...] | OSError) -> None:
            if not isinstance(result, OSError):
                self._post(lambda: use(result[0]))

        Lookup(found).start((address,), attempt)

    def _resolved(self, action: Open, result: tuple[str, ...] | OSError) -> None:
        if self._core.closed or not self._core.links.is_open(action.link):
            return
        if isinstance(result, OSError):
            reason = f"its name cannot be resolved ({result.strerror or result})"
            self._core.links.unreachable(action.link, reason)
        else:
            self._connect(action, (result[0], result[1]))

    def _connect(self, action: Open, addresses: tuple[str, str]) -> None:
        try:
            self._sockets.open(
                action.link, action.routing_id, addresses, action.endpoint.server_key
            )
        except AuthenticationError as error:
            self._on_refused(action.link, error)
        except zmq.ZMQError as error:
            self._core.links.unreachable(
                action.link, f"ZMQ cannot connect there ({error.strerror})"
            )
