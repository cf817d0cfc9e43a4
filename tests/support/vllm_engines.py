"""Real vLLM engines that tests share: two ranks, behind engine servers or launched by a client.

A vLLM takes half a minute and 2 GB, so that only one set of them runs at a time: EngineRoom
ends the set that is there before it makes another one.
"""

import json
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from enginecore_client import EngineCommand, NativeOptions, launch_core_engines
from support.faces import FACES, Face
from support.pod import client_addresses, descendants
from support.vllm_environment import RUN_VARIABLES
from support.vllm_pod import START_SECONDS, engine_process, vllm_pod, wait_ready

RANKS = 2
SLOTS = len(FACES) + 8
"""A client of each kind, and more for whoever asks."""

OPTIONS = (
    "--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "16",
    "--kv-cache-memory-bytes", str(256 << 20), "--enable-prompt-embeds", "--enable-lora",
    "--max-lora-rank", "8", "--worker-extension-cls", "support.vllm_echo.Echo",
    "--shutdown-timeout", "5",
)  # fmt: skip
"""float32: what is most likely does not hang on which requests are computed together. Without
time to shut down, the launcher kills its engine in the moment in which it asks it to end."""

ENVIRONMENT = {
    name: value for name, value in RUN_VARIABLES.items() if name != "VLLM_CPU_KVCACHE_SPACE"
} | {
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
}
"""The cache is as large as OPTIONS say. One thread per engine: two that wait for each other get
nothing done on a machine that is busy otherwise. And the engine computes in its own process, so
that there is one less to start."""


class EngineSet(Protocol):
    """Engines of RANKS ranks that clients can be made for."""

    def face(self, kind: str) -> Face:
        """Return a connected client, `sync` or `async`; it belongs to the set."""

    def options(self, number: int) -> dict[str, Any]:
        """Return the parameters of one of eight more clients, as JSON has them.

        Args:
            number: from 0; one client at a time may have it, and only once. Those from 2 on are
                the contract suite's.
        """

    def engine_pid(self, rank: int) -> int:
        """Return the process id of a rank's EngineCore."""

    def close(self) -> None:
        """End clients and engines."""


class PodSet:
    """Each rank behind an engine server of its own; clients connect to these."""

    def __init__(self, python: Path, model: Path) -> None:
        self._stack = ExitStack()
        self._faces: dict[str, Face] = {}
        try:
            self.pods = [
                self._stack.enter_context(
                    vllm_pod(python, model, *OPTIONS, rank=rank, env=ENVIRONMENT)
                )
                for rank in range(RANKS)
            ]
            for pod in self.pods:
                wait_ready(pod)
        except BaseException:
            self._stack.close()
            raise

    def face(self, kind: str) -> Face:
        """Return a connected client; see EngineSet."""
        if kind not in self._faces:
            self._faces[kind] = FACES[kind](client_addresses(self.pods))
            self._stack.callback(self._faces[kind].close)
        return self._faces[kind]

    def options(self, number: int) -> dict[str, Any]:
        """Return the parameters of another client; see EngineSet."""
        return {"client_addresses": client_addresses(self.pods)}

    def engine_pid(self, rank: int) -> int:
        """Return the process id of a rank's EngineCore."""
        return engine_process(self.pods[rank].engine_processes())

    def close(self) -> None:
        """End clients and engines."""
        self._stack.close()


class NativeSet:
    """Both ranks launched here; clients bind, and the engines know an address of each client."""

    def __init__(self, python: Path, model: Path) -> None:
        self._stack = ExitStack()
        self._model = model
        place = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="native-"))
        self._slots = [
            (f"ipc://{place}/input-{slot}", f"ipc://{place}/output-{slot}") for slot in range(SLOTS)
        ]
        inputs, outputs = zip(*self._slots, strict=True)
        try:
            self._launcher, _, self._addresses = self._stack.enter_context(
                launch_core_engines(
                    vllm_command(python, model),
                    data_parallel_size=RANKS,
                    inputs=inputs,
                    outputs=outputs,
                )
            )
            self._faces = {kind: self._connected(kind) for kind in FACES}
        except BaseException:
            self._stack.close()
            raise

    def face(self, kind: str) -> Face:
        """Return a connected client; see EngineSet."""
        return self._faces[kind]

    def options(self, number: int) -> dict[str, Any]:
        """Return the parameters of another client; see EngineSet."""
        return self._options(len(FACES) + number)

    def engine_pid(self, rank: int) -> int:
        """Return the process id of a rank's EngineCore."""
        return engine_process(descendants(self._launcher.pids[rank]))

    def close(self) -> None:
        """End clients and engines."""
        self._stack.close()

    def _options(self, slot: int) -> dict[str, Any]:
        input_address, output_address = self._slots[slot]
        return {
            "client_addresses": {
                "mode": "bind",
                "input_address": input_address,
                "output_address": output_address,
                "stats_update_address": self._addresses.frontend_stats_publish_address,
            },
            "data_parallel_size": RANKS,
            "client_count": SLOTS,
            "client_index": slot,
            "native": unsaid_facts(self._model),
        }

    def _connected(self, kind: str) -> Face:
        options = self._options(list(FACES).index(kind))
        options["native"] = NativeOptions(**options["native"])
        face = FACES[kind](options.pop("client_addresses"), ready_timeout=START_SECONDS, **options)
        self._stack.callback(face.close)
        return face


def vllm_command(python: Path, model: Path) -> EngineCommand:
    """Return how a client starts a vLLM engine."""
    program = (str(python.with_name("vllm")),)
    return EngineCommand.vllm(str(model), *OPTIONS, program=program, env=ENVIRONMENT)


def unsaid_facts(model: Path) -> dict[str, Any]:
    """Return what engines that dial in do not say of themselves, as NativeOptions has it."""
    config = json.loads((model / "config.json").read_text())
    return {
        "vocab_size": config["vocab_size"],
        "hidden_size": config["hidden_size"],
        "model_name": model.name,
    }


class EngineRoom:
    """Holds at most one set of engines.

    Args:
        python: of vLLM's environment.
        model: what the engines load.
    """

    def __init__(self, python: Path, model: Path) -> None:
        self.python = python
        self.model = model
        self._name = ""
        self._set: EngineSet | None = None

    def get(self, name: str) -> EngineSet:
        """Return the set of this name, made now unless it is the one that is there."""
        if self._set is None or name != self._name:
            self.clear()
            self._set = SETS[name](self.python, self.model)
            self._name = name
        return self._set

    def clear(self) -> None:
        """End the set that is there, if there is one."""
        engines, self._set = self._set, None
        if engines is not None:
            engines.close()


SETS: dict[str, Callable[[Path, Path], EngineSet]] = {"pods": PodSet, "native": NativeSet}
