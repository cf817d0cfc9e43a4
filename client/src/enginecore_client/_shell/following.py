"""Addresses of a source that may be the application's own, and may break."""

import logging
from typing import Any

from enginecore_client._addresses.addresses import ClientAddresses
from enginecore_client._addresses.sources import AddressSource
from enginecore_client.errors import AddressError

_LOG = logging.getLogger("enginecore_client")


class Followed:
    """Polls a source. One that breaks once it has worked changes nothing, and is told of once.

    Args:
        source: where addresses come from.
    """

    def __init__(self, source: AddressSource) -> None:
        self._source = source
        self._worked = False
        self._trouble = ""

    def poll(self, now: float) -> ClientAddresses | None:
        """Return addresses that changed since the last poll, or None.

        Raises:
            AddressError: the source gives something else, and never worked. So does whatever else
                it raises.
        """
        try:
            addresses: Any = self._source.poll(now)
            if not isinstance(addresses, ClientAddresses | None):
                raise AddressError(
                    f"{self._source.describe()}: poll gave {type(addresses).__name__}, allowed: "
                    "ClientAddresses (such as of ClientAddresses.from_dict), or None"
                )
        except Exception as error:
            if not self._worked:
                raise
            self._tell(repr(error))
            return None
        self._worked, self._trouble = True, ""
        return addresses

    def _tell(self, trouble: str) -> None:
        if trouble != self._trouble:
            _LOG.warning("no new addresses from %s: %s", self._source.describe(), trouble)
        self._trouble = trouble
