"""kill -9 of each process of an engine's pod: told at once, replaced, used again (C1, C4, C6)."""

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from enginecore_client import EngineDeadError, EngineNotReadyError
from support.eventually import eventually
from support.faces import FACES, Face
from support.pending import Load, Pending, serves
from support.pod_processes import PARTS, engine_pod_processes
from support.space import Engines

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("installation", "lab"),
]

BUDGET_SECONDS = 1.0
VICTIM, SURVIVOR = 0, 1
STREAM_TOKENS = 12000


@pytest.mark.parametrize("part", PARTS)
def test_killed_process(
    part: str,
    lab: Engines,
    make_face: Callable[..., Face],
    threads: ThreadPoolExecutor,
    record_property: Callable[[str, object], None],
) -> None:
    lab.wait_ready(2)
    before, pod = lab.core(VICTIM)["status"], lab.pod(VICTIM)
    neighbour = lab.pod(SURVIVOR)["metadata"]["uid"]
    pids = engine_pod_processes(pod["metadata"]["uid"])
    assert len(set(pids.values())) == len(PARTS)
    faces = [make_face(kind, lab) for kind in FACES]
    loads = [Load(face, SURVIVOR, threads) for face in faces]
    pending = [Pending(face, VICTIM, STREAM_TOKENS, threads) for face in faces]
    for calls in pending:
        calls.wait_first()
    eventually(lambda: all(load.served for load in loads), "requests of the other engine")

    killed = time.monotonic()
    os.kill(pids[part], signal.SIGKILL)

    failures = [failure for calls in pending for failure in calls.failures(10)]
    assert {type(f.error) for f in failures if f.call != "is_sleeping"} == {EngineDeadError}
    # A call made a moment too late finds no engine to go to.
    assert all(isinstance(f.error, EngineDeadError | EngineNotReadyError) for f in failures)
    assert {f.error.engine for f in failures if f.call != "is_sleeping"} == {VICTIM}
    told = max(failure.at for failure in failures) - killed
    record_property("told_seconds", round(told, 3))
    assert told <= BUDGET_SECONDS

    after = lab.wait_epoch(VICTIM, before["epoch"] + 1)
    for face in faces:
        eventually(lambda face=face: serves(face, VICTIM), "the replacement serves", 20, 0.1)
    record_property("replaced_seconds", round(time.monotonic() - killed, 1))
    assert all(load.stop() > 0 for load in loads)
    assert lab.pod(SURVIVOR)["metadata"]["uid"] == neighbour
    assert after["restarts"] == before["restarts"] + 1
    old, new = pod["metadata"]["name"], after["pod"]["name"]
    notes = [(event["reason"], event["note"]) for event in lab.space.events(f"{lab.name}-0")]
    assert [n for r, n in notes if r == "PodFailed" and old in n], notes
    assert [n for r, n in notes if r == "Replaced" and old in n and new in n], notes
    eventually(lambda: lab.space.get("pods", old) is None, "the dead pod goes", 30, 0.2)


def test_services_leave_no_trace_in_the_engines_environment(lab: Engines) -> None:
    """vLLM, among others, takes VLLM_PORT for a setting of its own."""
    assert lab.space.kubectl.find_all("services")
    for rank in (0, 1):
        pids = engine_pod_processes(lab.pod(rank)["metadata"]["uid"])
        for pid in pids.values():
            names = {
                entry.partition(b"=")[0].decode()
                for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            }
            # The kubelet gives every pod the API server's address, whatever it asks for.
            injected = {n for n in names if not n.startswith("KUBERNETES_")}
            assert not {n for n in injected if n.startswith("VLLM")}
            assert not {n for n in injected if n.endswith(("_SERVICE_HOST", "_TCP_ADDR"))}
