"""One scripted engine and the clients it serves, each a process of its own under vLLM's Python."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import msgspec
import zmq

from enginecore_wire.handshake import EngineAddresses, EngineInit
from support.stream_commands import Command, Took
from support.vllm_environment import RUN_VARIABLES, model_dir

SUPPORT = Path(__file__).parent
SOURCES = SUPPORT.parents[1] / "client" / "src"
START_SECONDS = 300
BARE = "bare"

Program = subprocess.Popen[str]


class StreamProcesses:
    """The engine and its clients: `ours`, `trusting`, `vllm` and `bare`, in this order.

    All have the same Python and the same libraries, and are bound to sockets of the same kind.

    Args:
        python: of vLLM's environment.
        kinds: which clients to start; the engine serves only these.
    """

    def __init__(
        self, python: Path, kinds: Sequence[str] = ("ours", "trusting", "vllm", BARE)
    ) -> None:
        self._python = python
        self._kinds = kinds
        self._directory = ""
        self._clients: dict[str, Program] = {}
        self._stack = ExitStack()
        self._decoder = msgspec.json.Decoder(Took)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._directory = stack.enter_context(TemporaryDirectory(prefix="streams-"))
            stack.enter_context(self._run("scripted_engine.py", self._address("handshake")))
            for kind in self._kinds:
                self._clients[kind] = stack.enter_context(self._start(kind))
            self._introduce()
            for kind, client in self._clients.items():
                if line_of(client) != "ready\n":
                    raise RuntimeError(f"the client {kind} did not start")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def ask(self, kind: str, command: Command) -> Took:
        """Have a client carry out a command; return what it took."""
        client = self._clients[kind]
        assert client.stdin is not None
        client.stdin.write(msgspec.json.encode(command).decode() + "\n")
        client.stdin.flush()
        line = line_of(client)
        if not line:
            raise RuntimeError(f"the client {kind} ended")
        return self._decoder.decode(line)

    def _start(self, kind: str) -> AbstractContextManager[Program]:
        addresses = self._address(f"{kind}-in"), self._address(f"{kind}-out")
        if kind == BARE:
            return self._run("bare_client.py", *addresses)
        return self._run("stream_clients.py", kind, *addresses, str(model_dir()))

    @contextmanager
    def _run(self, script: str, *arguments: str) -> Iterator[Program]:
        """Run one of this directory's programs until it is not wanted any more."""
        with subprocess.Popen(
            [str(self._python), str(SUPPORT / script), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(),
        ) as program:  # fmt: skip
            try:
                yield program
            finally:
                program.kill()

    def _introduce(self) -> None:
        """Tell the engine where its clients are."""
        with zmq.Context() as context, context.socket(zmq.ROUTER) as handshake:
            handshake.bind(self._address("handshake"))
            if not handshake.poll(START_SECONDS * 1000):
                raise TimeoutError("the scripted engine did not dial in")
            identity, _ = handshake.recv_multipart()
            inputs = [self._address(f"{kind}-in") for kind in self._kinds]
            outputs = [self._address(f"{kind}-out") for kind in self._kinds]
            init = msgspec.msgpack.encode(EngineInit(EngineAddresses(inputs, outputs)))
            handshake.send_multipart([identity, init])

    def _address(self, name: str) -> str:
        return f"ipc://{self._directory}/{name}"


def line_of(program: Program) -> str:
    """Return the next line a program writes, "" once it has ended."""
    assert program.stdout is not None
    return program.stdout.readline()


def environment() -> dict[str, str]:
    """Return the environment in which each of the processes runs."""
    path = os.pathsep.join((str(SOURCES), str(SUPPORT.parent)))
    return os.environ | RUN_VARIABLES | {
        "PYTHONPATH": path, "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def cost_of_import(python: Path, statement: str, runs: int = 3) -> tuple[float, int]:
    """Return the least processor seconds and resident bytes of `runs` imports in fresh
    interpreters; the first of them writes the bytecode."""
    probe = (
        f"import time\nfrom support.stream_commands import memory\nbegin = time.process_time()\n"
        f"{statement}\nprint(time.process_time() - begin, memory('VmRSS'))"
    )
    variables = {k: v for k, v in environment().items() if k != "PYTHONDONTWRITEBYTECODE"}
    found = []
    for _ in range(runs + 1):
        done = subprocess.run(
            [str(python), "-c", probe], check=True, capture_output=True, text=True, env=variables
        )
        seconds, resident = done.stdout.split()[-2:]
        found.append((float(seconds), int(resident)))
    return min(each[0] for each in found), min(each[1] for each in found)
