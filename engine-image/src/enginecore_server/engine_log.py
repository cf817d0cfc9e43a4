"""The engine's log as far as it is kept: its last lines, and the first error in it."""

import re
from collections import deque
from typing import Final

TAIL_LINES: Final = 50
_LONGEST_LINE: Final = 8192
_LONGEST_ERROR: Final = 500

LEAD: Final = re.compile(
    r"^(?:\([^()]* pid=\d+\) )?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d: -]+\[[^\]]*\] ?"
)
"""What vLLM begins each line with, those of a traceback too: process, level, time, source."""
_ERROR: Final = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)(?:: .|$)")


class EngineLog:
    """Takes the log as it comes, cut anywhere, and bounds what it keeps.

    Attributes:
        tail: the last lines.
        first_error: the first line that ends a traceback; empty: none so far. An engine of several
            processes fails in one of them, and the others' tracebacks come after that.
    """

    def __init__(self) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.first_error = ""
        self._partial = b""

    def feed(self, chunk: bytes) -> None:
        """Take what the engine has written."""
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        self._partial = self._partial[-_LONGEST_LINE:]
        for line in lines:
            self._take(line)

    def end(self) -> None:
        """Take what was not ended by a line break: nothing follows."""
        if self._partial:
            self._take(self._partial)
            self._partial = b""

    def _take(self, line: bytes) -> None:
        # Of a progress bar, which writes over itself, stays what a terminal would show.
        shown = line.rstrip(b"\r").rpartition(b"\r")[2]
        text = shown[-_LONGEST_LINE:].decode(errors="replace")
        self.tail.append(text)
        if not self.first_error:
            words = LEAD.sub("", text)
            if _ERROR.match(words):
                self.first_error = words[:_LONGEST_ERROR]
