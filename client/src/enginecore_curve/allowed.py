"""Who may connect: a directory with one file per role, each a public key per line.

A line is a key and, after a space, a name for people. kubelet replaces such a directory by swapping
a symbolic link, so what is compared are the files that the paths lead to. Others write a file in
place, empty for a moment: what is missing counts as taken away when the files have stood still.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from enginecore_curve.keys import KeyFileError
from enginecore_wire.public_keys import is_key

_MOST_BYTES: Final = 1 << 20
_STILL_SECONDS: Final = 0.05
"""Less than the 0.1 s after which whoever follows a list looks again."""

Look = tuple[tuple[int, ...], ...]


class AllowedKeys:
    """The public keys that may connect, each with its role; read again when a file changes.

    A change that cannot be read leaves the list as it was; `problem` says what is wrong with it.
    More rights count at once, fewer when a later look finds the same files.

    Args:
        directory: has the files.
        roles: their names, the lowest role first; a key in several files has the highest.
        clock: in seconds.

    Raises:
        KeyFileError: there is none of the files, or one is wrong.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        roles: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = [Path(directory) / role for role in roles]
        self._ranks = {role: rank for rank, role in enumerate(roles)}
        self._clock = clock
        self.problem = ""
        self._seen = self._look()
        self._seen_at = clock()
        self._written = self._roles = self._read()

    def __len__(self) -> int:
        return len(self._roles)

    def role_of(self, public_key: str) -> str | None:
        """Return the role of a key, or None if it may not connect."""
        return self._roles.get(public_key)

    def follow(self) -> bool:
        """Read the files if they changed; return whether the list is another one now."""
        seen, now = self._look(), self._clock()
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
            try:
                self._written = self._read()
            except KeyFileError as error:
                self._written = self._roles
                self.problem = str(error)
                return False
            self.problem = ""
            return self._take(self._with_all_rights())
        if now - self._seen_at < _STILL_SECONDS:
            return False
        return self._take(self._written)

    def _take(self, roles: dict[str, str]) -> bool:
        before, self._roles = self._roles, roles
        return roles != before

    def _with_all_rights(self) -> dict[str, str]:
        """Return the list with the higher role of before and now for each key."""
        listed = (*self._roles.items(), *self._written.items())
        return dict(sorted(listed, key=lambda item: self._ranks[item[1]]))

    def _look(self) -> Look:
        return tuple(map(_identity, self._paths))

    def _read(self) -> dict[str, str]:
        found: dict[str, str] = {}
        missing = 0
        for path in self._paths:
            try:
                with path.open("rb") as file:
                    text = file.read(_MOST_BYTES + 1)
            except FileNotFoundError:
                missing += 1
                continue
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                raise KeyFileError(f"cannot read the keys in {path}: {reason}") from error
            if len(text) > _MOST_BYTES:
                raise KeyFileError(f"{path} is longer than {_MOST_BYTES} bytes")
            for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
                key = line.split(maxsplit=1)[:1]
                if not key:
                    continue
                if not is_key(key[0]):
                    raise KeyFileError(
                        f"{path}, line {number}: expected a public key, 40 characters of Z85"
                    )
                found[key[0]] = path.name
        if missing == len(self._paths):
            names = " or ".join(path.name for path in self._paths)
            raise KeyFileError(f"{self._paths[0].parent} has no file {names} with public keys")
        return found


def _identity(path: Path) -> tuple[int, ...]:
    try:
        stat = path.stat()
    except (OSError, ValueError):
        return ()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
