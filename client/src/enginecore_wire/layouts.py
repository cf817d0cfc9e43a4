"""Which array positions an engine uses, told by its vLLM version.

vLLM's messages carry no version of their own, and positions have been inserted and dropped in
the middle of its arrays. The layout must therefore be known before the first message: it is
chosen by the version declared for the engine (its image's tag) and checked against the version
in the engine's READY.
"""

import re
from enum import StrEnum
from typing import Final

Release = tuple[int, ...]
"""The numbers of a vLLM release: (0, 32) and (0, 11, 1), which is later than (0, 11)."""


class Layout(StrEnum):
    """The positions of ADD up to `trace_headers`, which is all that a text request fills.

    A: vLLM 0.11 to 0.16, with the end-of-sequence id at position 5 and `client_index` at 11.
    B: vLLM 0.17 to 0.20, no end-of-sequence id, `client_index` at 10.
    C: vLLM 0.21 to 0.32, `prompt_is_token_ids` at 10, `client_index` at 11.
    """

    A = "A"
    B = "B"
    C = "C"


FIRST: Final[dict[Layout, Release]] = {Layout.A: (0, 11), Layout.B: (0, 17), Layout.C: (0, 21)}
"""The release a layout began with."""

OLDEST: Final[Release] = (0, 11)
NEWEST: Final[Release] = (0, 32)
"""The releases whose positions are known."""

_RELEASE = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:[.+\-a-z].*)?", re.DOTALL)


class LayoutError(ValueError):
    """The two sides do not place the same fields at the same positions.

    `declared` and `reported` are the versions of the two sides, as far as they are known.
    """

    def __init__(self, message: str, declared: str = "", reported: str = "") -> None:
        super().__init__(message)
        self.declared = declared
        self.reported = reported


def release_of(version: str) -> Release | None:
    """Return the release that a version or image tag names, or None if it names none of vLLM's.

    `0.32.0`, `0.32.0+cpu` and `v0.32.0-cu129` are (0, 32, 0). A pre-release counts as the
    release it is named after. `0.1.dev7+g1a2b3c` and `dev` (source trees without tags) name none.
    """
    match = _RELEASE.fullmatch(version)
    if match is None:
        return None
    release = int(match[1]), int(match[2]), int(match[3] or 0)
    return release if release >= (0, 2) else None


def layout_of(version: str) -> Layout:
    """Return the layout of a vLLM version; releases newer than 0.32 are read as 0.32.

    Args:
        version: vLLM's version or the tag of its image, such as `0.19.1` or `v0.19.1-cu129`.

    Raises:
        LayoutError: it names no release, or one older than 0.11.
    """
    release = release_of(version)
    if release is None:
        raise LayoutError(
            f"engine version {version!r} names no vLLM release; this side speaks "
            f"{spoken()}: declare the release the engine was built from",
            declared=version,
        )
    return layout_at(release, version)


def layout_at(release: Release, version: str = "") -> Layout:
    """Return the layout of a release; `version` is what an error calls it."""
    for layout in reversed(Layout):
        if release >= FIRST[layout]:
            return layout
    name = version or ".".join(map(str, release))
    raise LayoutError(
        f"the engine is vLLM {name}, this side speaks {spoken()}: update the engine",
        declared=name,
    )


def last_of(layout: Layout) -> Release:
    """Return the last release known to have `layout`."""
    later = [start for start in FIRST.values() if start > FIRST[layout]]
    if not later:
        return NEWEST
    major, minor = min(later)
    return major, minor - 1  # of every layout but the last, the next one's first is (0, n)


def spoken() -> str:
    """Return the releases this side speaks, for messages."""
    return "vLLM {}.{} to {}.{} and what only appends to it".format(*OLDEST, *NEWEST)
