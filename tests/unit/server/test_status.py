"""The status document and its short form."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from enginecore_server.child import write_termination_message
from enginecore_server.model_facts import ModelInputs
from enginecore_server.state import ServerState
from enginecore_server.status import TERMINATION_BYTES, Ports, server_status, termination_message
from enginecore_wire.contract import (
    EngineFacts,
    ModelConfig,
    PhaseRecord,
    ServerConfig,
    ServerStatus,
)
from enginecore_wire.control import Phase


def failed_state() -> ServerState:
    config = ServerConfig(name="smollm-0", model=ModelConfig("/m"), epoch=4)
    state = ServerState(config, ModelInputs(100), 0)
    state.phases.enter(Phase.FAILED, "EngineExited", "the engine's process exited with code 1")
    return state


def test_status_says_phase_reason_and_ports() -> None:
    status = server_status(failed_state(), Ports(1, 2, 3), ["last words"])
    assert (status.phase, status.reason, status.epoch) == ("Failed", "EngineExited", 4)
    assert (status.input_port, status.output_port, status.http_port) == (1, 2, 3)
    assert status.log_tail == ["last words"]
    assert [record.phase for record in status.phases] == ["Starting", "Failed"]


def test_the_termination_message_keeps_the_last_lines_that_fit() -> None:
    lines = [f"{number} " + "x" * 200 for number in range(50)]
    text = termination_message(server_status(failed_state(), Ports(), lines))
    kept = msgspec.json.decode(text, type=ServerStatus).log_tail
    assert len(text) <= TERMINATION_BYTES
    assert 10 <= len(kept) < 50
    assert kept == lines[-len(kept) :]


@pytest.mark.parametrize(
    "changes",
    [
        {"message": "é" * 9000, "log_tail": []},
        {"message": "m" * 9000, "log_tail": ["x" * 9000]},
        {"phases": [PhaseRecord("Loading", 1.0, "r" * 100)] * 100, "message": "m"},
        {"name": "n" * 9000, "reason": "r" * 9000, "engine": EngineFacts(version="v" * 9000)},
    ],
    ids=["message", "one long line", "phases", "everything else"],
)
def test_a_termination_message_is_json_however_much_there_is_to_say(
    changes: dict[str, Any],
) -> None:
    status = msgspec.structs.replace(server_status(failed_state(), Ports(), []), **changes)
    text = termination_message(status)
    read = msgspec.json.decode(text, type=ServerStatus)
    assert len(text) <= TERMINATION_BYTES
    assert (read.phase, read.epoch) == ("Failed", 4)
    assert status.message.startswith(read.message)


def test_only_a_pod_gets_a_termination_message(tmp_path: Path) -> None:
    place = tmp_path / "termination-log"
    write_termination_message(b"why", place)
    assert not place.exists()
    place.touch()
    write_termination_message(b"why", place)
    assert place.read_bytes() == b"why"
