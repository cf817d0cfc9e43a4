"""Pods on this host with a network before them, their coordinator, and what replaces them."""

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, Self

from chaos.faults import Fault
from chaos.network import Gate, Network
from chaos.programs import search_path
from enginecore_wire.contract import LivenessConfig, ModelConfig, RuntimeConfig, ServerConfig
from support.coordination import CoordinatorProcess, coordinator_process
from support.eventually import eventually
from support.pod import LOOPBACK, Pod

ENGINE: Final = Path(__file__).with_name("engine.py")
STEP_SECONDS: Final = 0.005
LIVENESS: Final = LivenessConfig(grace_seconds=2.0, step_deadline_seconds=3.0)
DRAIN_SECONDS: Final = 10.0
SETTLED_SECONDS: Final = 60.0

At = Callable[[float, Callable[[], None]], None]
"""Has something done some seconds from now."""


class Place:
    """A rank: the pod that serves it now, and the gates that lead to it."""

    def __init__(self, pod: Pod, gates: tuple[Gate, Gate]) -> None:
        self.pod = pod
        self.gates = gates


class Cluster:
    """Pods, each replaced by one of the next epoch as soon as it has ended; a context manager.

    Args:
        directory: where journals of engines and the file with addresses go.
        ranks: how many pods.

    Attributes:
        addresses: the file that clients follow.
        orderly: the journals' names of the engines whose servers left in order.
        stuck: those of the engines that were stopped for a while.
    """

    def __init__(self, directory: Path, ranks: int) -> None:
        self.addresses = directory / "addresses.json"
        self.orderly: set[str] = set()
        self.stuck: set[str] = set()
        self._directory = directory
        self._ranks = ranks
        self._places: list[Place] = []
        self._stack = ExitStack()
        self._network = Network()
        self._coordinator: CoordinatorProcess
        self._coordinator_stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._network)
            stack.callback(self._close_pods)
            stack.callback(lambda: self._coordinator_stack.close())
            self._start_coordinator("tcp://127.0.0.1:*", "tcp://127.0.0.1:*")
            for rank in range(self._ranks):
                self._places.append(self._place(rank, epoch=0))
            self._publish()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def journals(self) -> dict[str, Path]:
        """Return every engine's journal, by rank and epoch."""
        return {file.stem: file for file in self._directory.glob("engine-*.jsonl")}

    def keep(self) -> None:
        """Replace what has ended."""
        ended = [
            rank for rank, place in enumerate(self._places) if place.pod.process.poll() is not None
        ]
        for rank in ended:
            self._replace(rank)
        if ended:
            self._publish()
        if self._coordinator.process.poll() is not None:
            self._start_coordinator(
                self._coordinator.report_address, self._coordinator.publish_address
            )

    def suffer(self, fault: Fault, later: At) -> None:
        """Carry out a fault; `later` ends it."""
        place = self._places[fault.rank]
        pod = place.pod
        match fault.kind:
            case "engine":
                _signal(pod.engine_processes(), signal.SIGKILL)
            case "server":
                pod.process.kill()
            case "pod":
                pod.kill()
            case "drain":
                pod.terminate()
            case "stuck engine":
                self.stuck.add(_journal_name(pod.config))
                stopped = pod.engine_processes()
                _signal(stopped, signal.SIGSTOP)
                later(fault.seconds, partial(_signal, stopped, signal.SIGCONT))
            case "stuck server":
                pod.process.send_signal(signal.SIGSTOP)
                later(fault.seconds, lambda: pod.process.send_signal(signal.SIGCONT))
            case "cut":
                for gate in place.gates:
                    self._network.cut(gate)
            case "hole":
                for gate in place.gates:
                    self._network.swallow(gate, lasts=True)
                    later(fault.seconds, partial(self._network.swallow, gate, lasts=False))
            case "coordinator":
                self._coordinator.process.kill()

    def replace(self, rank: int) -> None:
        """Have a pod leave in order; return once the next one in its place is ready."""
        leaving = self._places[rank].pod
        leaving.terminate()
        self._left(leaving)
        self.keep()
        self._places[rank].pod.wait_ready()

    def settle(self) -> None:
        """Return once every pod is ready and holds nothing; then end all of them in order.

        Raises:
            AssertionError: that does not come about.
        """

        def idle() -> bool:
            self.keep()
            try:
                states = [place.pod.status() for place in self._places]
            except OSError:  # one is about to end of an earlier fault
                return False
            return all(s.phase == "Ready" and not s.in_flight and not s.clients for s in states)

        eventually(idle, "every pod is ready and idle", deadline=SETTLED_SECONDS)
        for place in self._places:
            place.pod.terminate()
        for place in self._places:
            self._left(place.pod)

    def wait_ready(self) -> None:
        """Return once every engine is ready."""
        for place in self._places:
            place.pod.wait_ready()

    def _left(self, pod: Pod) -> None:
        status = pod.process.wait(timeout=SETTLED_SECONDS)
        assert status == 0, f"exit status {status}: {pod.tail()}"
        self.orderly.add(_journal_name(pod.config))

    def _replace(self, rank: int) -> None:
        old = self._places[rank]
        if old.pod.process.returncode == 0:
            self.orderly.add(_journal_name(old.pod.config))
        for gate in old.gates:
            self._network.close(gate)
        old.pod.close()
        self._places[rank] = self._place(rank, old.pod.config.epoch + 1)

    def _place(self, rank: int, epoch: int) -> Place:
        name = f"engine-{rank}"
        journal = self._directory / f"{name}-{epoch}.jsonl"
        command = [
            sys.executable, str(ENGINE), "--data-parallel-address", "127.0.0.1",
            "--data-parallel-rpc-port", "$(ENGINECORE_HANDSHAKE_PORT)", "--journal", str(journal),
            "--token-seconds", str(STEP_SECONDS),
        ]  # fmt: skip
        config = ServerConfig(
            name=name,
            rank=rank,
            epoch=epoch,
            model=ModelConfig(path="none", served_name="none", vocab_size=1000),
            runtime=RuntimeConfig(type="custom", command=command),
            transport=LOOPBACK,
            liveness=LIVENESS,
            drain_deadline_seconds=DRAIN_SECONDS,
            coordinator_address=self._coordinator.report_address,
        )
        pod = Pod(config, PYTHONPATH=search_path())
        gates = self._network.open(pod.input_port), self._network.open(pod.output_port)
        return Place(pod, gates)

    def _publish(self) -> None:
        """Write the addresses as the kubelet writes a ConfigMap's: at once."""
        inputs, outputs = (
            [f"tcp://127.0.0.1:{place.gates[side].port}" for place in self._places]
            for side in (0, 1)
        )
        fresh = self.addresses.with_suffix(".new")
        fresh.write_text(json.dumps({
            "input_address": inputs, "output_address": outputs,
            "stats_update_address": self._coordinator.publish_address,
        }))  # fmt: skip
        fresh.rename(self.addresses)

    def _start_coordinator(self, report: str, publish: str) -> None:
        self._coordinator_stack.close()
        self._coordinator = self._coordinator_stack.enter_context(
            coordinator_process(report, publish)
        )

    def _close_pods(self) -> None:
        for place in self._places:
            place.pod.close()


def _journal_name(config: ServerConfig) -> str:
    return f"{config.name}-{config.epoch}"


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
