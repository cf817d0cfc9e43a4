"""A key pair; apart from files and sockets, for those who only pass it on."""

from typing import NamedTuple


class KeyPair(NamedTuple):
    """Both keys of one party; `secret` is never shown."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"KeyPair({self.public})"
