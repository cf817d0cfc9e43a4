"""Whether the engine sleeps, by what its clients told it and what it answered.

vLLM's front end keeps the same account for `vllm:engine_sleep_state`; an engine does not say it
otherwise.
"""

from collections.abc import Sequence
from typing import Any, Final

from enginecore_server.heads import UtilityHead

OFFLOADED: Final = 1
DISCARDED: Final = 2
_PAUSED: Final = 0
_AWAKE: Final = -1


class SleepBook:
    """How deep the engine sleeps."""

    def __init__(self) -> None:
        self._level = _AWAKE
        self._asked: dict[tuple[int, int], int] = {}

    def states(self) -> dict[str, bool]:
        """Return the states of vLLM's metric, and which of them hold."""
        return {
            "awake": self._level == _AWAKE,
            "weights_offloaded": self._level == OFFLOADED,
            "discard_all": self._level == DISCARDED,
        }

    def asked(self, slot: int, call_id: int, method: str, args: Sequence[Any]) -> None:
        """Note a call that goes to the engine."""
        if method == "sleep":
            level = args[0] if args else OFFLOADED
            if type(level) is int:
                self._asked[slot, call_id] = level
        elif method == "release_kv_cache_memory":
            self._asked[slot, call_id] = _PAUSED
        elif method == "wake_up":
            self._asked[slot, call_id] = _AWAKE

    def answered(self, slot: int, reply: UtilityHead) -> None:
        """Note the reply to a call; one of `wake_up` says whether the engine is fully awake."""
        level = self._asked.pop((slot, reply.call_id), None)
        if level is None or reply.failure_message is not None:
            return
        if level != _AWAKE or reply.value is not False:
            self._level = level
