"""Control calls (vLLM's utilities): results, failures, replies nobody waits for."""

from typing import Any, Final

import pytest

from enginecore_client.errors import UtilityError
from enginecore_client.testing.behaviours._registry import (
    OUTSIDE,
    PROMPT,
    Running,
    shared,
    tokens,
)
from enginecore_client.testing.engines import Trait
from enginecore_client.testing.faces import params

ECHOED: Final[list[Any]] = [
    None, True, 0, -1, 2**63 - 1, -(2**63), 2**64 - 1, 0.5, -1e300, "", "text", "日本語 \x00",
    b"", b"\x00\xff" * 300, [], {}, [[[]], [1, [2, [3]]]], "x" * 50_000,
]  # fmt: skip

NESTED: Final[dict[str, Any]] = {
    "name": "deep",
    "list": [1, 2.5, None, {"inner": [{"a": b"bytes"}, {"b": [True, False]}]}],
    "map": {"one": {"two": {"three": list(range(50))}}},
}

ABANDONED_SECONDS: Final = 0.1


@shared()
def calls_have_results(run: Running) -> None:
    """Operations return what the engine returns, in the type that they declare; so do calls by
    name, as it came."""
    assert "generate" in run.face.control("get_supported_tasks")
    for method in ("is_sleeping", "is_scheduler_paused"):
        assert run.face.control(method) is run.face.call(method) is False
    assert run.face.control("list_loras") == set()
    assert run.face.call("list_loras") == []
    assert run.face.control("reset_prefix_cache") is True
    assert run.face.control("pause_scheduler", "keep", False) is None
    assert run.face.control("is_scheduler_paused") is True
    assert run.face.control("resume_scheduler") is None


@shared(needs=frozenset({Trait.ECHOES}))
def values_come_back(run: Running) -> None:
    """Values of every plain kind reach the engine and come back as they were."""
    for value in ECHOED:
        for result in run.face.call("collective_rpc", "echo", None, [value]):
            assert result == value
            assert type(result) is type(value)


@shared(needs=frozenset({Trait.ECHOES}))
def nested_values_come_back(run: Running) -> None:
    """So do maps and lists inside each other, by position and by keyword."""
    results = run.face.call("collective_rpc", "echo", None, [NESTED])
    results += run.face.call("collective_rpc", "echo", None, [], {"value": NESTED})
    assert results == [NESTED] * len(results)
    assert len(results) >= 2


@shared()
def failed_call_harms_nothing(run: Running) -> None:
    """A call that fails in the engine raises what the engine says, and the next one works."""
    with pytest.raises(UtilityError, match="pin_lora") as failed:
        run.face.control("pin_lora", 7)
    assert failed.value.engine in range(run.cell.ranks)
    assert run.face.call("is_sleeping") is False
    assert run.serves()


@shared()
def calls_are_answered_amid_streams(run: Running) -> None:
    """A call is answered while streams run, which lose nothing by it."""
    stream = run.face.generate(list(PROMPT), params(60))
    first = next(stream)
    assert "generate" in run.face.call("get_supported_tasks")
    assert run.face.call("is_sleeping") is False
    assert len(tokens([first, *stream])) == 60


@shared(ways=OUTSIDE)
def abandoned_call_disturbs_nobody(run: Running) -> None:
    """A reply that comes after its caller gave up is dropped, and later calls get their own."""
    stream = run.face.generate(list(PROMPT), run.long, **run.placed(0))
    next(stream)
    # The engine replies once the request has ended, which is when nobody waits any more.
    run.face.abandon(ABANDONED_SECONDS, "pause_scheduler", "wait", False, engine=0)
    stream.close()  # type: ignore[attr-defined]
    assert run.face.call("is_scheduler_paused", engine=0) is True
    run.face.call("resume_scheduler", engine=0)
    for _ in range(3):
        assert run.face.call("is_scheduler_paused") is False
    assert run.serves()


@shared()
def pause_and_resume(run: Running) -> None:
    """A paused engine computes nothing for new requests, and goes on when it is resumed."""
    run.face.call("pause_scheduler", "abort", False)
    assert run.face.call("is_scheduler_paused") is True
    stream = run.face.generate(list(PROMPT), params(5))
    run.face.call("resume_scheduler")
    assert run.face.call("is_scheduler_paused") is False
    assert len(tokens(stream)) == 5
