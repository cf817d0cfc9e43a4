"""Who may report loads (engine servers) and who may read them (clients), where there are keys."""

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final

import zmq

from enginecore_curve.allowed import AllowedKeys
from enginecore_curve.keys import read_key_pair
from enginecore_curve.rare_log import RareLog
from enginecore_curve.zap import ZapHandler
from enginecore_wire.utility import Role

REPORTS: Final = b"reports"
LOADS: Final = b"loads"
SERVER: Final = "server"
"""The file of those who may report."""

FOLLOW_SECONDS: Final = 0.1

logger = logging.getLogger(__name__)


class Guard:
    """Lets in who holds a listed key. Made on the event loop, before the sockets it guards.

    The list is read again when it changed; whoever is connected stays.

    Args:
        context: that of the sockets; it stays the caller's.
        secret_key_file: has the coordinator's secret key.
        clients_directory: has the files of public keys.
        refused: told where somebody was not let in, REPORTS or LOADS.

    Raises:
        KeyFileError: a key is missing or is none.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        secret_key_file: str | os.PathLike[str],
        clients_directory: str | os.PathLike[str],
        refused: Callable[[str], None],
    ) -> None:
        self.pair = read_key_pair(secret_key_file)
        self._allowed = AllowedKeys(clients_directory, (*Role, SERVER))
        self._refused = refused
        self._log = RareLog(logger)
        self._zap = ZapHandler(context, self._may_enter)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(FOLLOW_SECONDS, self._follow)

    def close(self) -> None:
        """Let nobody in any more."""
        self._timer.cancel()
        self._zap.close()

    def _follow(self) -> None:
        self._timer = self._loop.call_later(FOLLOW_SECONDS, self._follow)
        self._allowed.follow()

    def _may_enter(self, domain: bytes, public_key: str) -> bool:
        self._allowed.follow()
        role = self._allowed.role_of(public_key)
        allowed = role == SERVER if domain == REPORTS else role in tuple(Role)
        if not allowed:
            self._refused(domain.decode())
            self._log.warning("key %s may not connect for %s", public_key, domain.decode())
        return allowed
