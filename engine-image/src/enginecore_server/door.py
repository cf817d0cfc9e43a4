"""Who may connect: with CURVE the holders of listed keys, without it anybody."""

import logging
from typing import Final, Protocol

import zmq

from enginecore_curve.allowed import AllowedKeys
from enginecore_curve.keys import KeyPair, read_key_pair
from enginecore_curve.zap import ZapHandler
from enginecore_wire.contract import TransportConfig
from enginecore_wire.utility import Role

_ROLES: Final = (Role.INFER, Role.ADMIN)

_log = logging.getLogger(__name__)


class Door(Protocol):
    """What guards the exposed sockets; `pair` are the server's keys, if it has any."""

    pair: KeyPair | None

    def role_of(self, public_key: str) -> Role | None:
        """Return what a key allows, or None if it may not be here (any more)."""

    def follow(self) -> bool:
        """Look at what is kept in files; return whether other keys may enter now."""

    def close(self) -> None:
        """Let nobody in any more."""


class OpenDoor:
    """Lets everybody in and allows everything."""

    pair: KeyPair | None = None

    def role_of(self, public_key: str) -> Role | None:  # noqa: ARG002 - there is none
        """Return the highest role."""
        return Role.ADMIN

    def follow(self) -> bool:
        """Say that nothing ever changes."""
        return False

    def close(self) -> None:
        """Do nothing."""


class CurveDoor:
    """Lets in who holds a listed key. Made on the event loop, before the sockets it guards.

    Args:
        context: that of the sockets; it stays the caller's.
        transport: names the secret key's file and the list's directory.

    Raises:
        KeyFileError: a key is missing or is none.
    """

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", transport: TransportConfig
    ) -> None:
        self.pair: KeyPair | None = read_key_pair(transport.secret_key_file)
        self._allowed = AllowedKeys(transport.clients_directory, _ROLES)
        self._changed = False
        self._zap = ZapHandler(context, self._may_enter)
        _log.info("public key %s; %d keys may connect", self.pair.public, len(self._allowed))

    def role_of(self, public_key: str) -> Role | None:
        """Return the role of a key, or None if it is not listed."""
        role = self._allowed.role_of(public_key)
        return None if role is None else Role(role)

    def follow(self) -> bool:
        """Read the list again if it changed; return whether it is another one now."""
        self._zap.poke()
        self._look()
        changed, self._changed = self._changed, False
        return changed

    def close(self) -> None:
        """Let nobody in any more."""
        self._zap.close()

    def _may_enter(self, _domain: bytes, public_key: str) -> bool:
        self._look()
        return self.role_of(public_key) is not None

    def _look(self) -> None:
        problem = self._allowed.problem
        if self._allowed.follow():
            self._changed = True
            _log.info("the list of keys changed; %d keys may connect", len(self._allowed))
        if self._allowed.problem not in ("", problem):
            _log.error("the list of keys stays as it was: %s", self._allowed.problem)


def make_door(context: "zmq.Context[zmq.Socket[bytes]]", transport: TransportConfig) -> Door:
    """Return what `transport.security` asks for.

    Raises:
        KeyFileError: a key is missing or is none.
    """
    if transport.security == "Curve":
        return CurveDoor(context, transport)
    return OpenDoor()
