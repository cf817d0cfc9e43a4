"""The engine as a process, driven over vLLM's native protocol on loopback."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from enginecore_wire.codec import MsgpackEncoder
from enginecore_wire.outputs import EngineCoreOutput, FinishReason
from enginecore_wire.requests import EngineCoreRequest, RequestType, SamplingParams
from support.native_front_end import EngineDeadError, NativeFrontEnd
from support.tiny_llama import VOCAB_SIZE, write_tiny_llama

Start = Callable[..., subprocess.Popen[bytes]]

START_SECONDS = 60.0
MAX_POSITIONS = 512


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model"), MAX_POSITIONS)


@pytest.fixture
def start(model: Path) -> Iterator[Start]:
    """Starts engine processes and ends those that a test leaves running."""
    started: list[subprocess.Popen[bytes]] = []

    def run(front: NativeFrontEnd, *arguments: str) -> subprocess.Popen[bytes]:
        command = [
            sys.executable, "-m", "enginecore_torch", str(model), "--threads", "1",
            "--data-parallel-rpc-port", str(front.port), *arguments,
        ]  # fmt: skip
        process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


def request(name: str, **changes: object) -> EngineCoreRequest:
    params = SamplingParams(temperature=0.0, max_tokens=8)
    defaults: dict[str, object] = {"prompt_token_ids": [1, 2, 3], "sampling_params": params}
    return EngineCoreRequest(name, **{**defaults, **changes})  # type: ignore[arg-type]


def endless(name: str, **changes: object) -> EngineCoreRequest:
    params = SamplingParams(temperature=0.0, max_tokens=MAX_POSITIONS, ignore_eos=True)
    return request(name, sampling_params=params, **changes)


def next_output(front: NativeFrontEnd, name: str, client: int = 0) -> EngineCoreOutput:
    while True:
        for output in front.receive(client).outputs:
            if output.request_id == name:
                return output


def read_on(front: NativeFrontEnd, client: int = 0, timeout: float = 30.0) -> None:
    """Read until it raises."""
    while True:
        front.receive(client, timeout)


def test_handshake_and_stream(start: Start) -> None:
    with NativeFrontEnd(rank=3) as front:
        process = start(front, "--data-parallel-rank", "3", "--block-size", "8")
        ready = front.accept(START_SECONDS)
        assert [(s.status, s.local, s.headless) for s in front.status] == [
            ("HELLO", False, True),
            ("READY", False, True),
        ]
        assert (ready.data_parallel_rank, ready.block_size) == (3, 8)
        assert ready.max_model_len == MAX_POSITIONS
        assert ready.dtype == "float32"
        assert front.call("get_supported_tasks") == ["generate"]

        front.add(request("a"))
        tokens: list[int] = []
        seen = []
        while not seen or seen[-1].finish_reason is None:
            message = front.receive()
            assert message.engine_index == 3
            assert message.scheduler_stats is not None
            assert message.timestamp > 0
            assert message.finished_requests is None
            seen += message.outputs
            tokens += message.outputs[0].new_token_ids
        assert len(tokens) == len(seen) == 8
        assert all(0 <= token < VOCAB_SIZE for token in tokens)
        assert seen[-1].finish_reason is FinishReason.LENGTH
        assert [event.type.name for event in seen[0].events or ()] == ["QUEUED", "SCHEDULED"]
        assert seen[0].prefill_stats is not None
        assert seen[0].prefill_stats.num_prompt_tokens == 3
        assert process.poll() is None


def test_one_input_serves_many_outputs(start: Start) -> None:
    with NativeFrontEnd(num_outputs=4) as front:
        start(front)
        front.accept(START_SECONDS)
        front.add(*[request(f"r{client}", client_index=client) for client in (0, 2, 3)])
        expected = front.finish(["r0"])["r0"]
        for client in (2, 3):
            assert front.finish([f"r{client}"], client=client) == {f"r{client}": expected}
        assert front.call("is_sleeping", client=1) is False


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([b"\x7f", b"\x90"], id="unknown type"),
        pytest.param([b"\x04", b"\x90"], id="a sentinel of vLLM's own"),
        pytest.param([RequestType.ADD], id="no body"),
        pytest.param([RequestType.ADD, b"\xc1"], id="not msgpack"),
        pytest.param([RequestType.ADD, b"\x91" * 5000], id="nested without end"),
        pytest.param([RequestType.ADD, msgspec.msgpack.encode({})], id="not an array"),
        pytest.param([RequestType.ABORT, msgspec.msgpack.encode(7)], id="abort of a number"),
        pytest.param([RequestType.UTILITY, msgspec.msgpack.encode([0])], id="call without method"),
        pytest.param(
            [RequestType.UTILITY, msgspec.msgpack.encode([9, 1, "is_sleeping", []])],
            id="call without output",
        ),
        pytest.param([RequestType.START_DP_WAVE, msgspec.msgpack.encode([1, None])], id="wave"),
        pytest.param(
            [RequestType.ADD, *MsgpackEncoder().encode(request("x", client_index=99))],
            id="client without output",
        ),
    ],
)
def test_unreadable_messages_harm_nothing(shared: NativeFrontEnd, frames: list[bytes]) -> None:
    shared.add(endless("before"))
    next_output(shared, "before")
    shared.send(*frames)
    shared.add(request("after"))
    assert len(shared.finish(["after"])["after"]) == 8
    shared.abort("before")


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({"prompt_token_ids": [VOCAB_SIZE]}, id="token outside the vocabulary"),
        pytest.param({"prompt_token_ids": []}, id="empty prompt"),
        pytest.param({"prompt_token_ids": [1] * MAX_POSITIONS}, id="prompt too long"),
        pytest.param({"prompt_token_ids": ["one"]}, id="token is text"),
        pytest.param({"sampling_params": None}, id="no params"),
        pytest.param({"sampling_params": SamplingParams(temperature=5.0)}, id="too hot"),
        pytest.param({"sampling_params": SamplingParams(max_tokens=None)}, id="no max_tokens"),
        pytest.param({"resumable": True}, id="session"),
    ],
)
def test_a_request_that_cannot_be_computed_ends_with_error(
    shared: NativeFrontEnd, bad: dict[str, object]
) -> None:
    shared.add(request("bad", **bad))
    assert next_output(shared, "bad").finish_reason is FinishReason.ERROR
    shared.add(request("good"))
    assert len(shared.finish(["good"])["good"]) == 8


@pytest.fixture(scope="module")
def shared(model: Path) -> Iterator[NativeFrontEnd]:
    """An engine for tests that leave it as it was."""
    with NativeFrontEnd() as front:
        command = [
            sys.executable, "-m", "enginecore_torch", str(model), "--threads", "1",
            "--data-parallel-rpc-port", str(front.port),
        ]  # fmt: skip
        process = subprocess.Popen(command)
        try:
            front.accept(START_SECONDS)
            yield front
            assert process.poll() is None
        finally:
            process.kill()
            process.wait()


def test_a_second_request_of_a_running_id_leaves_the_first_alone(shared: NativeFrontEnd) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    shared.add(request("same", sampling_params=params), request("same"))
    assert len(shared.finish(["same"])["same"]) == 40


@pytest.mark.parametrize(
    ("method", "args", "failure"),
    [
        ("shutdown", [], "'shutdown' is not supported"),
        ("__init__", [], "is not supported"),
        ("sleep", [1], "level: got 1, allowed: 0"),
        ("pause_scheduler", ["never"], "mode: got 'never'"),
        ("is_sleeping", [1, 2], "too many positional arguments"),
        ("profile", [], "start the engine with --profile-dir"),
    ],
)
def test_calls_that_fail_say_why(
    shared: NativeFrontEnd, method: str, args: list[object], failure: str
) -> None:
    with pytest.raises(RuntimeError, match=f"Call to {method} method failed: .*{failure}"):
        shared.call(method, *args)
    assert shared.call("list_loras") == []


def test_waiting_pause_is_answered_when_requests_have_ended(shared: NativeFrontEnd) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    shared.add(request("running", sampling_params=params))
    next_output(shared, "running")
    call = shared.begin_call("pause_scheduler", "wait")
    shared.add(request("later"))
    ended = False
    while True:
        message = shared.receive()
        assert all(output.request_id == "running" for output in message.outputs)
        ended |= any(output.finish_reason is not None for output in message.outputs)
        if message.utility_output is not None:
            break
    assert message.utility_output.call_id == call
    assert ended
    assert shared.call("is_scheduler_paused") is True
    shared.call("resume_scheduler")
    assert len(shared.finish(["later"])["later"]) == 8


def test_coordinator_gets_counts_and_front_ends_the_ids_that_ended(start: Start) -> None:
    with NativeFrontEnd(coordinator=True) as front:
        start(front)
        front.accept(START_SECONDS)
        front.add(request("a"))
        finished: list[str] = []
        while not finished:
            finished += front.receive().finished_requests or []
        assert finished == ["a"]
        assert front.reports is not None
        counts: list[tuple[int, int]] = []
        decoder = msgspec.msgpack.Decoder()
        while not counts or counts[-1] != (0, 0):
            assert front.reports.poll(10_000)
            rank, outputs, stats, timestamp, utility, *_ = decoder.decode(front.reports.recv())
            assert (rank, outputs, utility) == (0, [], None)
            assert timestamp > 0
            counts.append((stats["num_waiting_reqs"], stats["num_running_reqs"]))
        assert counts == [(1, 0), (0, 1), (0, 0)]


def test_sigterm_aborts_and_exits_with_0(start: Start) -> None:
    with NativeFrontEnd(num_outputs=2) as front:
        process = start(front)
        front.accept(START_SECONDS)
        front.add(endless("a"), endless("b", client_index=1))
        for name, client in (("a", 0), ("b", 1)):
            assert next_output(front, name, client).finish_reason is None
        process.send_signal(signal.SIGTERM)
        for name, client in (("a", 0), ("b", 1)):
            output = next_output(front, name, client)
            while output.finish_reason is None:
                output = next_output(front, name, client)
            assert output.finish_reason is FinishReason.ABORT
        assert process.wait(10) == 0


@pytest.mark.parametrize(
    ("method", "args"), [("pause_scheduler", ["wait"]), ("sleep", [0, "wait"])]
)
def test_a_call_that_waits_for_running_requests_fails_at_the_end(
    start: Start, method: str, args: list[object]
) -> None:
    with NativeFrontEnd() as front:
        process = start(front)
        front.accept(START_SECONDS)
        front.add(endless("a"))
        next_output(front, "a")
        call = front.begin_call(method, *args)
        assert front.call("is_scheduler_paused") is True, "the call before it is under way"
        process.send_signal(signal.SIGTERM)
        assert front.reply_to(call).failure_message == "Server shutting down"
        assert process.wait(10) == 0


def test_sigterm_lets_requests_go_on_within_the_timeout(start: Start) -> None:
    with NativeFrontEnd() as front:
        process = start(front, "--shutdown-timeout", "30")
        front.accept(START_SECONDS)
        params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
        front.add(request("a", sampling_params=params))
        next_output(front, "a")
        process.send_signal(signal.SIGTERM)
        assert len(front.finish(["a"])["a"]) == 99
        assert process.wait(10) == 0


def test_sigterm_while_nobody_answers_hello(start: Start) -> None:
    with NativeFrontEnd() as front:
        process = start(front)
        assert front._handshake.poll(60_000)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_no_answer_to_hello_is_an_error(start: Start) -> None:
    with NativeFrontEnd() as front:
        assert start(front, "--handshake-timeout", "0.2").wait(60) == 1


def test_a_broken_loop_tells_every_client(model: Path) -> None:
    """The model is made to fail in the middle of a run, in a process of its own."""
    program = (
        "import sys\n"
        "from enginecore_torch import __main__, runner\n"
        "run, steps = runner.ModelRunner.run, []\n"
        "def failing(self, batch):\n"
        "    steps.append(1)\n"
        "    if len(steps) > 3:\n"
        "        raise RuntimeError('out of memory')\n"
        "    return run(self, batch)\n"
        "runner.ModelRunner.run = failing\n"
        "sys.exit(__main__.main(sys.argv[1:]))\n"
    )
    with NativeFrontEnd(num_outputs=2) as front:
        command = [
            sys.executable, "-c", program, str(model), "--threads", "1",
            "--data-parallel-rpc-port", str(front.port),
        ]  # fmt: skip
        process = subprocess.Popen(command)
        try:
            front.accept(START_SECONDS)
            front.add(endless("a"))
            for client in (0, 1):
                with pytest.raises(EngineDeadError):
                    read_on(front, client)
            assert process.wait(10) == 1
        finally:
            process.kill()
            process.wait()


def test_outputs_stop_when_the_process_is_killed(start: Start) -> None:
    with NativeFrontEnd() as front:
        process = start(front)
        front.accept(START_SECONDS)
        front.add(endless("a"))
        next_output(front, "a")
        process.kill()
        process.wait()
        with pytest.raises(TimeoutError):
            read_on(front, timeout=0.2)
