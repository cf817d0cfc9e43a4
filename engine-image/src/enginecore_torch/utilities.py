"""Utility calls: what a front end may ask of the engine by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from enginecore_torch.scheduler import Pause

if TYPE_CHECKING:
    from enginecore_torch.core import EngineCore

WEIGHT_VERSION = "default"
"""The version of weights that were never replaced."""

PAUSE_MODES = ("abort", "wait", "keep")


class Utilities:
    """Answers utility calls; holds the profiler, the only state they have."""

    def __init__(self, profile_dir: Path | None) -> None:
        """Make the table of calls.

        Args:
            profile_dir: where traces are written; None refuses `profile`.
        """
        self._profile_dir = profile_dir
        self._profiler: torch.profiler.profile | None = None
        self._traces = 0
        self._methods: dict[str, Callable[..., Any]] = {
            "get_supported_tasks": lambda _: ["generate"],
            "get_weight_version": lambda _: WEIGHT_VERSION,
            "list_loras": lambda _: [],
            "is_sleeping": _is_paused,
            "is_scheduler_paused": _is_paused,
            "pause_scheduler": _pause,
            "resume_scheduler": _resume,
            "sleep": _sleep,
            "wake_up": _wake_up,
            "reset_prefix_cache": _reset_prefix_cache,
            "reset_mm_cache": lambda _: None,
            "reset_encoder_cache": lambda _: None,
            "execute_dummy_batch": lambda core: core.run_dummy(),
            "profile": self._profile,
        }

    def call(self, core: EngineCore, method: str, args: Sequence[Any]) -> Any:
        """Run `method` on `core` and return its value.

        Raises:
            ValueError: there is no such method, or the arguments do not fit it.
        """
        function = self._methods.get(method)
        if function is None:
            known = ", ".join(sorted(self._methods))
            raise ValueError(f"method: {method!r} is not supported; this engine has {known}")
        try:
            inspect.signature(function).bind(core, *args)
        except TypeError as error:
            raise ValueError(f"{method}: {error}") from None
        return function(core, *args)

    def close(self) -> None:
        """Stop a running profiler without writing its trace."""
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None

    def _profile(
        self,
        _core: EngineCore,
        is_start: bool = True,
        prefix: str | None = None,
        _delay_iterations: int | None = None,
        _max_iterations: int | None = None,
    ) -> None:
        if self._profile_dir is None:
            raise ValueError("profile: no place for traces; start the engine with --profile-dir")
        if is_start == (self._profiler is not None):
            raise ValueError(f"profile: it is {'running already' if is_start else 'not running'}")
        if is_start:
            self._profiler = torch.profiler.profile()
            self._profiler.start()
            return
        assert self._profiler is not None
        self._profiler.stop()
        self._profile_dir.mkdir(parents=True, exist_ok=True)
        name = f"{Path(prefix or 'trace').name}-{self._traces}.json"
        self._profiler.export_chrome_trace(str(self._profile_dir / name))
        self._profiler = None
        self._traces += 1


def _is_paused(core: EngineCore) -> bool:
    return core.pause is not Pause.NONE


def _pause(core: EngineCore, mode: str = "abort", clear_cache: bool = True) -> None:
    """Take no new request up. Those in service are aborted, finished, or kept as they are."""
    if mode not in PAUSE_MODES:
        raise ValueError(f"mode: got {mode!r}, allowed: {', '.join(PAUSE_MODES)}")
    core.set_pause(Pause.ALL if mode == "keep" else Pause.NEW)
    if mode == "abort":
        core.abort_all()
    if clear_cache and mode == "keep":
        core.reset_prefix_cache(preempt=True)
    elif clear_cache:
        core.clear_cache_when_drained()


def _resume(core: EngineCore) -> None:
    core.set_pause(Pause.NONE)


def _sleep(core: EngineCore, level: int = 1, mode: str = "abort") -> None:
    if level != 0:
        raise ValueError(
            f"level: got {level}, allowed: 0 (pause); this engine does not move its weights"
        )
    _pause(core, mode, clear_cache=False)


def _wake_up(core: EngineCore, _tags: list[str] | None = None) -> bool:
    core.set_pause(Pause.NONE)
    return True


def _reset_prefix_cache(
    core: EngineCore, reset_running_requests: bool = False, _reset_connector: bool = False
) -> bool:
    return core.reset_prefix_cache(preempt=reset_running_requests)
