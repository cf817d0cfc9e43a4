"""Skips that continuous integration accepts: those that tests/skips.toml gives a reason for."""

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path


class SkipList:
    """Patterns of node ids, each with the reason why its test may be skipped.

    Args:
        path: a TOML file with tables `[[skip]]`: `test` (a pattern as in a shell) and `reason`.

    Raises:
        ValueError: an entry lacks one of the keys, or has another one.
    """

    def __init__(self, path: Path) -> None:
        self._patterns: list[str] = []
        entries = tomllib.loads(path.read_text()).get("skip", []) if path.exists() else []
        for number, entry in enumerate(entries):
            if set(entry) != {"test", "reason"} or not all(str(v).strip() for v in entry.values()):
                raise ValueError(f"{path}: skip[{number}] needs exactly the keys test and reason")
            self._patterns.append(entry["test"])

    def allows(self, node_id: str) -> bool:
        """Say whether the test with this id may be skipped."""
        return any(fnmatchcase(node_id, pattern) for pattern in self._patterns)
