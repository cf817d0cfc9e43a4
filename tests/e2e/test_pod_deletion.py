"""Pods deleted by users: drained where they may, told where not; names stay right (C8, C10)."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from enginecore_client import EngineDeadError, EngineNotReadyError
from enginecore_wire.outputs import FinishReason
from support.eventually import eventually
from support.faces import FACES, Face, params
from support.pending import PROMPT, Pending, serves, tokens_for
from support.space import Engines

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("installation", "lab"),
]

BUDGET_SECONDS = 5.0
STREAM_TOKENS = 12000
DRAIN_SECONDS = 15.0
"""Longer than the next pod needs to get an address, and far from the drain deadline."""
RESOLVE = (
    "import json, socket, sys;"
    "print(json.dumps(sorted({a[4][0] for a in socket.getaddrinfo(sys.argv[1], None)})))"
)


def resolve(lab: Engines, name: str) -> list[str]:
    """Return the addresses of a name, as a pod of the cluster sees them."""
    text = lab.space.kubectl.run(
        "exec", lab.pod(1)["metadata"]["name"], "--", "python", "-c", RESOLVE, name
    )
    addresses: list[str] = json.loads(text)
    return addresses


def test_deleted_pod_ends_its_streams_whole_and_loses_its_name_at_once(
    lab: Engines, make_face: Callable[..., Face], threads: ThreadPoolExecutor
) -> None:
    lab.wait_ready(2)
    epoch, old = lab.epoch(0), lab.pod(0)
    named = json.loads(
        lab.space.kubectl.get("configmap", f"{lab.name}-client-addresses")["data"][
            "client_addresses_dns.json"
        ]
    )
    host = named["input_address"][0].removeprefix("tcp://").rpartition(":")[0]
    assert resolve(lab, host) == [old["status"]["podIP"]]
    faces = [make_face(kind, lab) for kind in FACES]
    length = min(tokens_for(faces[0], 0, DRAIN_SECONDS), STREAM_TOKENS)
    streams = [face.generate(PROMPT, params(length), data_parallel_rank=0) for face in faces]
    firsts = [next(stream) for stream in streams]
    endings = [threads.submit(list, stream) for stream in streams]

    lab.space.kubectl.run("delete", "pod", old["metadata"]["name"], "--wait=false")
    eventually(lambda: lab.epoch(0) == epoch + 1, "the next epoch", 10, 0.1)
    stale = f"//{old['status']['podIP']}:"
    eventually(lambda: stale not in json.dumps(lab.status()), "no address of the old pod", 5, 0.1)
    for face in faces:
        outputs = list(face.generate(PROMPT, params(4)))
        assert sum(len(output.new_token_ids) for output in outputs) == 4
    eventually(lambda: lab.pod(0)["status"].get("podIP"), "the next pod's address", 60, 0.2)
    fresh = lab.pod(0)["status"]["podIP"]
    eventually(lambda: resolve(lab, host) == [fresh], "the name leads to the next pod", 15, 0.5)
    draining = lab.space.get("pods", old["metadata"]["name"])
    assert draining is not None
    assert draining["metadata"]["deletionTimestamp"]
    assert not any(ending.done() for ending in endings)

    for first, ending in zip(firsts, endings, strict=True):
        outputs = [first, *ending.result(60)]
        assert sum(len(output.new_token_ids) for output in outputs) == length
        assert outputs[-1].finish_reason == FinishReason.LENGTH
    lab.wait_epoch(0, epoch + 1)
    for face in faces:
        eventually(lambda face=face: serves(face, 0), "the replacement serves", 20, 0.1)
    gone = old["metadata"]["name"]
    eventually(lambda: lab.space.get("pods", gone) is None, "the drained pod goes", 30, 0.2)


def test_pod_deleted_by_force_is_told_and_replaced(
    lab: Engines,
    make_face: Callable[..., Face],
    threads: ThreadPoolExecutor,
    record_property: Callable[[str, object], None],
) -> None:
    lab.wait_ready(2)
    epoch, old = lab.epoch(0), lab.pod(0)["metadata"]["name"]
    faces = [make_face(kind, lab) for kind in FACES]
    pending = [Pending(face, 0, STREAM_TOKENS, threads) for face in faces]
    for calls in pending:
        calls.wait_first()

    deleted = time.monotonic()
    lab.space.kubectl.run("delete", "pod", old, "--force", "--grace-period=0")

    failures = [failure for calls in pending for failure in calls.failures(20)]
    assert {type(f.error) for f in failures if f.call != "is_sleeping"} == {EngineDeadError}
    # A call made a moment too late finds no engine to go to.
    assert {type(f.error) for f in failures} <= {EngineDeadError, EngineNotReadyError}, failures
    told = max(failure.at for failure in failures) - deleted
    record_property("told_seconds", round(told, 3))
    assert told <= BUDGET_SECONDS
    lab.wait_epoch(0, epoch + 1)
    for face in faces:
        eventually(lambda face=face: serves(face, 0), "the replacement serves", 20, 0.1)
    record_property("replaced_seconds", round(time.monotonic() - deleted, 1))
