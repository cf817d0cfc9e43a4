"""The positions one engine uses, from what was declared of it and what it says of itself.

`dialect_of` takes the version an image's tag declares, before the first message; `confirm`
checks it once the engine's READY payload is there; `dialect_in` reads a pod's READY.
"""

from typing import Final

import msgspec

from enginecore_wire.layouts import (
    NEWEST,
    Layout,
    LayoutError,
    Release,
    last_of,
    layout_at,
    layout_of,
    release_of,
)
from enginecore_wire.positions import LORA, OUTPUT, POOLING, REQUEST, Order, at


class Dialect(msgspec.Struct, frozen=True):
    """The positions of vLLM's arrays in one release."""

    release: Release

    @property
    def layout(self) -> Layout:
        """The layout the release belongs to."""
        return layout_at(self.release)

    @property
    def request(self) -> Order:
        """Fields of ADD by position, as far as this side fills them."""
        return at(REQUEST, self.release)

    @property
    def output(self) -> Order:
        """Fields of EngineCoreOutput by position."""
        return at(OUTPUT, self.release)

    @property
    def lora(self) -> Order:
        """Fields of LoRARequest by position."""
        return at(LORA, self.release)

    @property
    def pooling(self) -> Order:
        """Fields of PoolingParams by position."""
        return at(POOLING, self.release)

    @property
    def client_index(self) -> int:
        """The position of `client_index` in ADD."""
        return self.request.index("client_index")

    def __str__(self) -> str:
        return f"vLLM {'.'.join(map(str, self.release))} (layout {self.layout})"


NATIVE: Final = Dialect(NEWEST)
"""The dialect whose positions are those of this package's types."""


def dialect_of(version: str) -> Dialect:
    """Return the dialect of a vLLM version; releases newer than 0.32 are read as 0.32.

    Raises:
        LayoutError: `version` names no release, or one older than 0.11.
    """
    layout_of(version)
    release = release_of(version)
    assert release is not None
    return Dialect(min(release, NEWEST))


def dialect_in(layout: str, version: str) -> Dialect:
    """Return the dialect of an engine behind a pod, from the pod's READY.

    Args:
        layout: the layout the pod says its engine speaks.
        version: the runtime's version. One that names no vLLM release (another engine's own)
            stands for the layout's last release.

    Raises:
        LayoutError: this side does not know the layout, or the version has another one.
    """
    if layout not in list(Layout):
        raise LayoutError(
            f"the engine speaks layout {layout!r} (version {version or 'unknown'}), this side "
            f"{', '.join(Layout)}: update the older of the two",
            reported=layout,
        )
    if release_of(version) is None:
        return Dialect(last_of(Layout(layout)))
    dialect = dialect_of(version)
    if dialect.layout != layout:
        raise LayoutError(
            f"the pod says layout {layout} of an engine that is {dialect}: "
            "correct the version declared for the pod's engine",
            declared=layout,
            reported=version,
        )
    return dialect


def confirm(declared: str | None, reported: str | None) -> Dialect:
    """Return the dialect of an engine whose READY payload came.

    vLLM reports its version since 0.23. Where it reports none, or something that names no
    vLLM release, what was declared holds, or the newest positions if nothing was.

    Args:
        declared: the version the engine was said to have.
        reported: the version in its READY payload.

    Raises:
        LayoutError: the two have different layouts, or one of them is not spoken here.
    """
    if not reported or release_of(reported) is None:
        return dialect_of(declared) if declared else NATIVE
    theirs = dialect_of(reported)
    ours = dialect_of(declared) if declared else theirs
    if ours.layout is not theirs.layout:
        raise LayoutError(
            f"the engine reports vLLM {reported} (layout {theirs.layout}), declared was "
            f"{declared} (layout {ours.layout}): declare the version that runs, "
            "or run the one declared",
            declared=declared or "",
            reported=reported,
        )
    return theirs
