"""The garbage collector, while a burst of outputs is read and handed out."""

import gc
from typing import Self


class NoCollection:
    """Has the collector rest for the length of a `with` block, if it is on.

    Each output of a burst has a list of tokens, and all of them live until their readers run: the
    collector, which runs every few hundred lists, would go through the same ones again and again.
    It is the whole process's; a block takes milliseconds, and what another thread says of the
    collector during one may not last.
    """

    __slots__ = ("_collects",)

    def __init__(self) -> None:
        self._collects = False

    def __enter__(self) -> Self:
        self._collects = gc.isenabled()
        gc.disable()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._collects:
            gc.enable()
