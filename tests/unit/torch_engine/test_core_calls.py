"""Utility calls of an EngineCore over a tiny model."""

import json
from pathlib import Path
from typing import Any

import pytest

from enginecore_torch.core import EngineCore
from enginecore_wire.outputs import FinishReason
from support.torch_runs import make_core, request, run

PROMPT = [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("method", "args", "value"),
    [
        ("get_supported_tasks", [], ["generate"]),
        ("get_weight_version", [], "default"),
        ("list_loras", [], []),
        ("is_sleeping", [], False),
        ("is_scheduler_paused", [], False),
        ("reset_prefix_cache", [], True),
        ("reset_prefix_cache", [False, False], True),
        ("reset_mm_cache", [], None),
        ("reset_encoder_cache", [], None),
        ("execute_dummy_batch", [], None),
    ],
)
def test_calls(core: EngineCore, method: str, args: list[Any], value: Any) -> None:
    assert core.call(method, args) == value


@pytest.mark.parametrize(
    ("mode", "during"),
    [("abort", {"old": FinishReason.ABORT}), ("wait", {"old": FinishReason.LENGTH}), ("keep", {})],
)
@pytest.mark.parametrize(
    ("pause", "resume"),
    [
        (lambda mode: ("pause_scheduler", [mode, True]), "resume_scheduler"),
        (lambda mode: ("sleep", [0, mode]), "wake_up"),
    ],
    ids=["pause", "sleep"],
)
def test_pausing(
    core: EngineCore, mode: str, during: dict[str, FinishReason], pause: Any, resume: str
) -> None:
    core.add_request(request("old", PROMPT, max_tokens=5))
    core.step()
    core.call(*pause(mode))
    assert core.call("is_sleeping", []) is True
    core.add_request(request("new", PROMPT, max_tokens=5))
    ended = {}
    while core.has_work():
        for message in core.step().values():
            for output in message.outputs:
                ended[output.request_id] = output.finish_reason
    assert ended == during
    core.call(resume, [])
    assert core.call("is_scheduler_paused", []) is False
    left = {"new"} if during else {"old", "new"}
    while core.has_work():
        for message in core.step().values():
            left -= {o.request_id for o in message.outputs if o.finish_reason is not None}
    assert not left


def test_resetting_the_cache_with_requests_running(core: EngineCore) -> None:
    core.add_request(request("a", PROMPT, max_tokens=8))
    core.step()
    assert core.call("reset_prefix_cache", []) is False
    assert core.call("reset_prefix_cache", [True]) is True
    assert core.load == (1, 0)
    while core.has_work():
        core.step()


def test_profile_writes_a_trace(model: Path, tmp_path: Path) -> None:
    core = make_core(model, profile_dir=tmp_path / "traces")
    with pytest.raises(ValueError, match="profile: it is not running"):
        core.call("profile", [False])
    core.call("profile", [True, "../outside"])
    run(core, request("a", PROMPT, max_tokens=2))
    core.call("profile", [False, "../outside"])
    (trace,) = (tmp_path / "traces").iterdir()
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert "aten::embedding" in names
