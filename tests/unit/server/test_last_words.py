"""What a server leaves to the kubelet."""

from random import Random
from typing import Any

import msgspec
import pytest

from enginecore_server.last_words import TERMINATION_BYTES, compact, termination_message
from enginecore_wire.contract import EngineFacts, PhaseRecord, ServerStatus
from enginecore_wire.packed_log import unpack

FAILED = ServerStatus(
    name="smollm-0",
    rank=0,
    epoch=4,
    phase="Failed",
    reason="EngineExited",
    message="the engine's process exited with code 1",
)
WORDS = [
    *("model", "executor", "KV", "cache", "blocks", "worker", "engine", "failed", "weights"),
    *("shards", "seconds", "memory", "GiB", "profile", "graph", "capture", "tokens", "rank"),
]
LEAD = "(EngineCore pid=71) ERROR 11-30 22:10:11 [core.py:1320] "
TRACEBACK = [
    f"{LEAD}Traceback (most recent call last):",
    *(
        line
        for number in range(24)
        for line in (
            f'{LEAD}  File "/usr/lib/python3.12/vllm/v1/engine/core.py", line {number}, in run',
            f"{LEAD}    engine = EngineCoreProc(*args)",
        )
    ),
    f"{LEAD}ValueError: To serve at least one request, 1.12 GiB KV cache is needed",
]


def read(text: bytes) -> ServerStatus:
    assert len(text) <= TERMINATION_BYTES
    return msgspec.json.decode(text, type=ServerStatus)


def test_fifty_lines_of_a_traceback_arrive() -> None:
    assert len(TRACEBACK) == 50
    kept = read(termination_message(msgspec.structs.replace(FAILED, log_tail=TRACEBACK))).log_tail
    assert len(kept) == 50
    assert kept[0] == TRACEBACK[0]
    assert kept[-1] == TRACEBACK[-1].removeprefix(LEAD)


def test_fifty_lines_of_any_log_arrive_for_the_operator() -> None:
    """Lines of vLLM's own log, as far from alike as they come: 7 kB."""
    words = Random(7)
    lines = [
        f"{LEAD}{' '.join(words.choice(WORDS) for _ in range(14))} {words.randrange(10**6)}"
        for _ in range(50)
    ]
    assert sum(map(len, lines)) > TERMINATION_BYTES * 1.5
    left = read(termination_message(msgspec.structs.replace(FAILED, log_tail=lines)))
    assert unpack(left.log_packed) == lines
    assert len(left.log_tail) >= 5
    assert left.log_tail[-1] == lines[-1].removeprefix(LEAD)


@pytest.mark.parametrize("message", ["m" * 1500, "m" * 2500, "錯" * 500, "錯" * 2000])
def test_a_long_message_leaves_room_for_the_log(message: str) -> None:
    lines = [Random(number).randbytes(40).hex() for number in range(50)]
    status = msgspec.structs.replace(FAILED, message=message, log_tail=lines)
    left = read(termination_message(status))
    kept = unpack(left.log_packed)
    assert len(kept) >= 12
    assert kept == lines[-len(kept) :]
    assert message.startswith(left.message)
    assert len(left.message) >= 250


def test_of_a_log_that_cannot_be_packed_the_end_arrives() -> None:
    lines = [Random(number).randbytes(60).hex() for number in range(50)]
    left = read(termination_message(msgspec.structs.replace(FAILED, log_tail=lines)))
    kept = unpack(left.log_packed)
    assert 10 <= len(kept) < 50
    assert kept == lines[-len(kept) :]


def test_lines_are_shortened_by_what_they_have_in_common() -> None:
    other = "INFO 11-30 22:10:12 [utils.py:1] ready"
    assert list(compact([LEAD + "a", LEAD + "b", other, LEAD + "c", "plain", LEAD + "d", ""])) == [
        *(LEAD + "a", "b", other, LEAD + "c", "plain", LEAD + "d", ""),
    ]
    (short,) = compact(["<" + "x" * 5000 + ">"])
    assert len(short) < 500
    assert (short[0], short[-1]) == ("<", ">")


def test_the_termination_message_keeps_the_last_lines_that_fit() -> None:
    lines = [f"{number} " + "x" * 200 for number in range(50)]
    text = termination_message(msgspec.structs.replace(FAILED, log_tail=lines))
    kept = read(text).log_tail
    assert 10 <= len(kept) < 50
    assert kept == lines[-len(kept) :]


@pytest.mark.parametrize(
    "changes",
    [
        {"message": "é" * 9000, "log_tail": []},
        {"message": "m" * 9000, "log_tail": ["x" * 9000]},
        {"phases": [PhaseRecord("Loading", 1.0, "r" * 100)] * 100, "message": "m"},
        {
            "name": "n" * 9000,
            "reason": "r" * 9000,
            "engine": EngineFacts(version="v" * 9000),
            "cluster": "c" * 9000,
            "model_name": "m" * 9000,
        },
    ],
    ids=["message", "one long line", "phases", "everything else"],
)
def test_a_termination_message_is_json_however_much_there_is_to_say(
    changes: dict[str, Any],
) -> None:
    status = msgspec.structs.replace(FAILED, **changes)
    told = read(termination_message(status))
    assert (told.phase, told.epoch) == ("Failed", 4)
    assert status.message.startswith(told.message)
