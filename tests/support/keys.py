"""Key pairs and the files in which a pod finds them, laid out as kubelet does."""

import os
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from enginecore_client.testing._pod import LOOPBACK
from enginecore_curve.keys import KeyPair, new_key_pair
from enginecore_wire.contract import TransportConfig

INFER: Final = "infer"
ADMIN: Final = "admin"


def write_secret(pair: KeyPair, file: Path) -> Path:
    """Write the secret key of a pair, as a Secret has it in a volume; return the file."""
    file.write_text(pair.secret + "\n")
    return file


class MountedKeys:
    """A directory of allowed keys that changes by the swap of a symbolic link.

    Args:
        directory: becomes the volume.
        lists: public keys by role.
    """

    def __init__(self, directory: Path, **lists: list[KeyPair]) -> None:
        self.directory = directory
        self._numbers = count()
        directory.mkdir()
        for role in (INFER, ADMIN, "server"):
            (directory / role).symlink_to(f"..data/{role}")
        self.write(**lists)

    def write(self, **lists: list[KeyPair]) -> None:
        """Replace all lists at once."""
        self.write_text(
            **{
                role: "".join(f"{pair.public} number-{i}\n" for i, pair in enumerate(pairs))
                for role, pairs in lists.items()
            }
        )

    def write_text(self, **texts: str) -> None:
        """Replace all files at once."""
        version = self.directory / f"..{next(self._numbers)}"
        version.mkdir()
        for role, text in texts.items():
            (version / role).write_text(text)
        link = self.directory / "..new"
        link.symlink_to(version.name)
        os.replace(link, self.directory / "..data")


class PodKeys:
    """The keys of one cluster: the pods' pair, and an `infer` and an `admin` client's.

    Args:
        directory: for the files.
    """

    def __init__(self, directory: Path) -> None:
        self.server, self.infer, self.admin = (new_key_pair() for _ in range(3))
        self.clients = MountedKeys(directory / "clients", infer=[self.infer], admin=[self.admin])
        self.transport: TransportConfig = msgspec.structs.replace(
            LOOPBACK,
            security="Curve",
            secret_key_file=str(write_secret(self.server, directory / "secret-key")),
            clients_directory=str(self.clients.directory),
        )
