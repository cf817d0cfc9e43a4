"""Launched processes that misbehave, and callers who ask for what cannot be."""

import contextlib
import io
import threading
import time
from typing import Any

import pytest
import zmq

from enginecore_client import (
    ClientClosedError,
    EngineCommand,
    EngineStartupError,
    LaunchOptions,
    NativeOptions,
    OutputKind,
    RequestRejectedError,
    SamplingParams,
    StartupTimeoutError,
    SyncMPClient,
    launch_core_engines,
)
from support.eventually import eventually
from support.native_engines import alive, launched_stub

IDLE = ("sleep", "60 {port}")
STUB = launched_stub()
QUICK = LaunchOptions(stop_seconds=1.0)
PARAMS = SamplingParams(max_tokens=5, output_kind=OutputKind.DELTA)


def shell(script: str) -> list[str]:
    return ["sh", "-c", f"{script} # {{port}}"]


def tokens(client: SyncMPClient) -> list[int]:
    return [t for o in client.generate([7, 11, 13], PARAMS) for t in o.new_token_ids]


@pytest.mark.parametrize("script", ["yes", "yes & sleep 60", "setsid yes & exec sleep 60"])
def test_who_writes_without_end_is_ended_in_time(script: str) -> None:
    started = time.monotonic()
    with contextlib.redirect_stderr(io.StringIO()), pytest.raises(StartupTimeoutError):
        SyncMPClient(engine_command=shell(script), ready_timeout=1.5, launch=QUICK)
    assert time.monotonic() - started < 10
    assert "enginecore-launcher" not in {thread.name for thread in threading.enumerate()}


def test_what_is_written_goes_to_a_standard_error_without_bytes_too() -> None:
    log = io.StringIO()
    with contextlib.redirect_stderr(log), pytest.raises(EngineStartupError, match="status 3"):
        SyncMPClient(engine_command=shell("echo so much; exit 3"))
    assert "so much" in log.getvalue()


def test_closing_its_output_is_not_an_end() -> None:
    with pytest.raises(StartupTimeoutError, match="no HELLO yet"):
        SyncMPClient(
            engine_command=shell("exec >&- 2>&-; sleep 60"), ready_timeout=1.0, launch=QUICK
        )


@pytest.mark.parametrize("size", [1, 2])
def test_command_that_the_system_refuses_ends_the_start(size: int) -> None:
    with pytest.raises(EngineStartupError, match="Argument list too long"):
        SyncMPClient(engine_command=["true", "{port}" + "x" * 200_000], data_parallel_size=size)


def test_restart_of_a_rank_that_is_not_there_harms_nothing() -> None:
    with SyncMPClient(engine_command=STUB) as client:
        manager = client.engine_manager
        assert manager is not None
        for rank in (1, -1, "0", None, True):
            with pytest.raises(RequestRejectedError, match=r"rank: got .*allowed: 0, the ranks"):
                manager.restart(rank)
        assert tokens(client) == [7, 11, 13, 7, 11]
    with pytest.raises(ClientClosedError, match="no engines run here"):
        manager.restart(0)


def test_restart_while_an_engine_starts_is_no_failure() -> None:
    with launch_core_engines(launched_stub("--fail", "stall"), launch=QUICK) as (manager, _, _):
        first = manager.pids[0]
        manager.restart(0)
        eventually(lambda: manager.pids.get(0, first) != first, "another process")
        assert not alive(first)
        assert manager.failure is None


def test_knocking_without_end_does_not_keep_engines_from_ending(caplog) -> None:
    over = threading.Event()

    def knock(address: str) -> None:
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.connect(address)
            while not over.is_set():
                socket.send(b"\x93" * 8, zmq.NOBLOCK)

    with launch_core_engines(STUB) as (manager, _, _):
        thread = threading.Thread(target=knock, args=[manager.handshake_address])
        thread.start()
        try:
            eventually(lambda: "handshake refused" in caplog.text, "the first knock")
            started = time.monotonic()
            manager.close()
            manager.join()
            assert not manager.running
            assert time.monotonic() - started < 8
        finally:
            over.set()
            thread.join()


WRONG = [
    ("launch", {"launch": {}}),
    ("launch", {"launch": None}),
    ("launch.host", {"launch": LaunchOptions(host=5)}),  # type: ignore[arg-type]
    ("launch.stop_seconds", {"launch": LaunchOptions(stop_seconds=1e300)}),
    ("native.probe_seconds", {"native": NativeOptions(probe_seconds=10**400)}),
    ("native.vocab_size", {"native": NativeOptions(vocab_size=2**70)}),
    ("native.in_flight", {"native": NativeOptions(in_flight=2**70)}),
    ("launch.coordinator", {"launch": LaunchOptions(coordinator="no")}),  # type: ignore[arg-type]
    ("launch.parallel_config", {"launch": LaunchOptions(parallel_config={"a": object()})}),
    ("launch.local_ranks", {"launch": LaunchOptions(local_ranks=())}),
    ("launch.local_ranks", {"launch": LaunchOptions(local_ranks=(1,))}),
    ("native", {"native": {}}),
    ("engine_command", {"engine_command": ["a\0", "{port}"]}),
    ("engine_command.env", {"engine_command": EngineCommand(IDLE, env={"A": 1})}),  # type: ignore[dict-item]
    ("engine_command.env", {"engine_command": EngineCommand(IDLE, env={"A": "\0"})}),
    ("engine_command.model", {"engine_command": EngineCommand(IDLE, model=5)}),  # type: ignore[arg-type]
    ("engine_command.vocab_size", {"engine_command": EngineCommand(IDLE, vocab_size=0)}),
]


@pytest.mark.parametrize(("field", "options"), WRONG)
def test_wrong_options_name_the_field(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(RequestRejectedError, match=f"^{field}: ") as caught:
        SyncMPClient(**{"engine_command": IDLE} | options)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("inputs", "ipc:///tmp/x"),
        ("inputs", [5]),
        ("outputs", ["ipc:///tmp/x"]),
        ("timeout", "x"),
        ("timeout", -1),
        ("lockstep", "no"),
    ],
)
def test_wrong_arguments_of_a_launch_name_the_field(field: str, value: Any) -> None:
    with (
        pytest.raises(RequestRejectedError, match=f"^{field}: ") as caught,
        launch_core_engines(IDLE, **{field: value}),
    ):
        pass
    assert caught.value.field == field


def test_an_error_does_not_show_the_value_of_a_variable() -> None:
    command = EngineCommand(IDLE, env={"HF_TOKEN": "secret\0"})
    with pytest.raises(RequestRejectedError, match="HF_TOKEN") as caught:
        SyncMPClient(engine_command=command)
    assert "secret" not in str(caught.value)
