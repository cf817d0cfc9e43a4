"""Key pairs in files, and sockets that use them."""

import os
from typing import Final

import zmq

from enginecore_curve.pair import KeyPair as KeyPair  # noqa: PLC0414 - shown here, too
from enginecore_wire.public_keys import KEY_CHARACTERS, is_key

_MOST_BYTES: Final = 1 << 10


class KeyFileError(ValueError):
    """A key, or a file of keys, cannot be used; the text names the file and the remedy."""


def new_key_pair() -> KeyPair:
    """Return a key pair that nobody else has."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def read_key_pair(path: str | os.PathLike[str]) -> KeyPair:
    """Return the key pair whose secret key a file holds.

    Raises:
        KeyFileError: the file cannot be read or holds no key.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST_BYTES).decode("ascii", "replace").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise KeyFileError(f"cannot read the secret key in {path}: {reason}") from error
    if not is_key(text):
        raise KeyFileError(
            f"{path} holds no secret key: expected {KEY_CHARACTERS} characters of Z85, as "
            "python -m enginecore_curve makes them"
        )
    return pair_of(text)


def pair_of(secret: str) -> KeyPair:
    """Return the pair of a secret key."""
    return KeyPair(zmq.curve_public(secret.encode()).decode(), secret)


def read_public_keys(path: str | os.PathLike[str]) -> list[str]:
    """Return the public keys in a file, the first word of each line.

    Raises:
        KeyFileError: the file cannot be read, holds something else, or none.
    """
    try:
        with open(path, "rb") as file:
            lines = file.read(_MOST_BYTES).decode("ascii", "replace").splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise KeyFileError(f"cannot read the public keys in {path}: {reason}") from error
    keys = [line.split(maxsplit=1)[0] for line in lines if line.strip()]
    if not keys or not all(map(is_key, keys)):
        raise KeyFileError(f"{path}: expected public keys, {KEY_CHARACTERS} characters of Z85 each")
    return keys


def serve_curve(socket: "zmq.Socket[bytes]", pair: KeyPair, domain: bytes) -> None:
    """Have a socket that is not bound yet take nobody whom the ZAP handler does not let in; it is
    asked with the name `domain`."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())
    # Without these, libzmq lets everybody in where no handler answers.
    socket.setsockopt(zmq.ZAP_DOMAIN, domain)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def connect_curve(socket: "zmq.Socket[bytes]", pair: KeyPair, server_key: str) -> None:
    """Have a socket that is not connected yet speak only to the holder of `server_key`'s secret."""
    socket.setsockopt(zmq.CURVE_SERVERKEY, server_key.encode())
    socket.setsockopt(zmq.CURVE_PUBLICKEY, pair.public.encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())
