"""The status document and its short form."""

from pathlib import Path

from enginecore_server.child import write_termination_message
from enginecore_server.model_facts import ModelInputs
from enginecore_server.sessions import Side
from enginecore_server.state import ServerState
from enginecore_server.status import Ports, server_status
from enginecore_wire.contract import (
    ClientStatus,
    LimitsStatus,
    LoadStatus,
    ModelConfig,
    ServerConfig,
)
from enginecore_wire.control import Limits, Phase


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
    assert set(status.phase_seconds) == set(Phase)


def test_status_says_who_is_served_and_within_which_limits() -> None:
    config = ServerConfig(
        name="smollm-0",
        cluster="smollm",
        model=ModelConfig("/m", served_name="smollm"),
        limits=Limits(frame_bytes=5000, in_flight=7, in_flight_total=9, prompt_tokens=11),
    )
    state = ServerState(config, ModelInputs(100), 0)
    for fd, side in enumerate(Side):
        state.book.hello(side, b"id", b"nonce", "front end", fd, 1)
    session = state.book.find(b"id")
    assert session is not None
    state.book.add(session, "r", 3, 0.0)
    session.backlog.append([b"12345"])
    session.backlog_bytes = 5
    session.outputs_sent = 4
    status = server_status(state, Ports(), [])
    assert (status.cluster, status.model_name, status.runtime) == ("smollm", "smollm", "torch")
    assert status.limits == LimitsStatus(
        frame_bytes=5000, in_flight=7, in_flight_total=9, prompt_tokens=11
    )
    assert status.load == LoadStatus(running=1, waiting=0, kv_cache_usage=0.0)
    assert status.sessions == [
        ClientStatus(
            slot=1, name="front end", role="admin", connected=True, in_flight=1, calls=0,
            outputs_sent=4, queued_messages=1, queued_bytes=5,
        )
    ]  # fmt: skip


def test_only_a_pod_gets_a_termination_message(tmp_path: Path) -> None:
    place = tmp_path / "termination-log"
    write_termination_message(b"why", place)
    assert not place.exists()
    place.touch()
    write_termination_message(b"why", place)
    assert place.read_bytes() == b"why"
