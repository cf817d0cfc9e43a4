"""What a server leaves to the kubelet at its end: how it ended, and the end of the engine's log."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from enginecore_server.engine_log import LEAD
from enginecore_wire.contract import ServerStatus
from enginecore_wire.packed_log import pack
from enginecore_wire.wording import shortened

TERMINATION_BYTES: Final = 4096
"""What the kubelet keeps of a termination message."""

PACKED_BYTES: Final = 3000
"""Of these, for the log that is compressed; what is left has its end as plain text."""
LEAST_PACKED_BYTES: Final = 1500
"""To keep more of the log than this, a long message is not cut."""

_LONGEST_LINE: Final = 400


def termination_message(status: ServerStatus) -> bytes:
    """Return the status as JSON, reduced to what is asked of the dead.

    It is a ServerStatus to whoever parses it, so what does not fit is left out, never cut: first
    the oldest log lines, then the end of a long message. The log is there twice: compressed for the
    operator, and as many of its last lines as fit for people who look at the pod.
    """
    lines = list(compact(status.log_tail))
    whole = [shortened(line, _LONGEST_LINE, _LONGEST_LINE // 2) for line in status.log_tail]
    packed = _packed(whole, PACKED_BYTES)
    words = status.message
    while len(text := _encode(status, words, lines, packed)) > TERMINATION_BYTES:
        excess = len(text) - TERMINATION_BYTES
        if lines:
            del lines[0]
        elif len(packed) > max(LEAST_PACKED_BYTES, excess) or (packed and not words):
            packed = _packed(whole, len(packed) - excess)
        elif words:
            words = words[: len(words) // 2]
        else:
            status = msgspec.structs.replace(status, name=status.name[:253], reason="")
    return text


def _packed(lines: Sequence[str], room: int) -> str:
    """Pack the last lines that fit into so many bytes; "" if none does."""
    while lines:
        packed = pack(lines)
        if len(packed) <= room:
            return packed
        lines = lines[max(1, len(lines) // 8) :]
    return ""


def compact(lines: Sequence[str]) -> Iterator[str]:
    """Shorten log lines, so that more of them fit.

    What vLLM writes before each line of a traceback stays only where it changes, and of lines
    that are very long the middle is left out.
    """
    before = ""
    for line in lines:
        match = LEAD.match(line)
        lead = match.group() if match else ""
        kept = line[len(lead) :] if lead and lead == before else line
        before = lead
        yield shortened(kept, _LONGEST_LINE, _LONGEST_LINE // 2)


def _encode(status: ServerStatus, message: str, lines: Sequence[str], packed: str) -> bytes:
    document: dict[str, Any] = {
        "name": status.name,
        "rank": status.rank,
        "epoch": status.epoch,
        "phase": status.phase,
        "reason": status.reason,
        "message": message,
        "since": status.since,
        "logTail": lines,
        "logPacked": packed,
    }
    return msgspec.json.encode(document)
