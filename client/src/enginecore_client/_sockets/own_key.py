"""The client's own key pair, kept in a file."""

import os
from typing import Any, Final

from enginecore_client.errors import AuthenticationError
from enginecore_curve.keys import KeyFileError, KeyPair, connect_curve, read_key_pair

KEY_FILE_ENV: Final = "ENGINECORE_CLIENT_KEY_FILE"
"""Names the file with the client's secret key, where no argument does."""

_REMEDY: Final = f"give the path of a file with a secret key as client_key, or in {KEY_FILE_ENV}"


class OwnKey:
    """Reads the key whenever a connection is made, so that another key in the file counts then.

    Args:
        path: the file; None for the one that the environment names, if any.

    Raises:
        AuthenticationError: a file is named and has no key.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = path or os.environ.get(KEY_FILE_ENV)
        if self._path:
            self.pair()

    def pair(self) -> KeyPair:
        """Return the key pair as the file has it now.

        Raises:
            AuthenticationError: there is none; the text says what to do.
        """
        if not self._path:
            raise AuthenticationError(
                f"its address has a server_key, and this client has no key of its own; {_REMEDY}"
            )
        try:
            return read_key_pair(self._path)
        except KeyFileError as error:
            raise AuthenticationError(f"client_key: {error}; {_REMEDY}") from error

    def apply(self, socket: Any, server_key: str) -> str:
        """Have a socket use CURVE if the other side has a key; return the public key used, or "".

        Raises:
            AuthenticationError: the client has no key.
        """
        if not server_key:
            return ""
        pair = self.pair()
        connect_curve(socket, pair, server_key)
        return pair.public
