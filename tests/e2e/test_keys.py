"""CURVE with keys that the operator makes: who mounts one is served, who has none gets nothing, and
keys change under load without a lost request."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from enginecore_client import AuthenticationError, NotPermittedError
from support.client_pod import client_label
from support.eventually import eventually
from support.faces import Face, params
from support.installation import KEY_LAG_SECONDS, Installation
from support.pending import PROMPT
from support.space import Engines, Space, Tree, temporary_space

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("installation"),
]

RANKS = 2
DRAIN_SECONDS = 5
STEP_SECONDS = 4.0 * KEY_LAG_SECONDS
ROLLOUT_SECONDS = 180.0
LOAD = """
import asyncio, signal
from enginecore_client import AsyncMPClient, OutputKind, SamplingParams

async def main():
    stop, served = asyncio.Event(), 0
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    params = SamplingParams(max_tokens=24, ignore_eos=True, output_kind=OutputKind.DELTA)
    async with AsyncMPClient("/addresses/client_addresses.json", retry=True) as client:
        async def load():
            nonlocal served
            while not stop.is_set():
                stream = client.generate([1, 2, 3], params)
                tokens = [token async for output in stream for token in output.new_token_ids]
                assert len(tokens) == 24, tokens
                served += 1
                print(served, flush=True)
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(load())

asyncio.run(main())
"""
KNOCK = """
import socket, sys, time, zmq

host, port, key = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def let_in():
    # The network's rules follow a new pod's label a moment later.
    end = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection((host, port), 5)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)

with let_in() as peer:
    peer.settimeout(3)
    # A greeting of ZMTP 3.1 for the mechanism NULL, then its READY.
    peer.sendall(b"\\xff" + bytes(8) + b"\\x7f\\x03\\x01NULL" + bytes(48) + b"\\x04\\x06\\x05READY")
    got = b""
    try:
        while chunk := peer.recv(4096):
            got += chunk
    except (TimeoutError, ConnectionResetError):
        pass
print("beyond the greeting:", got[64:])
with zmq.Context() as context:
    for name, curve in (("no key", False), ("own key", True)):
        dealer = context.socket(zmq.DEALER)
        dealer.linger = 0
        if curve:
            dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
            dealer.curve_serverkey = key.encode()
        dealer.connect(f"tcp://{host}:{port}")
        dealer.send_multipart([b"\\x80", b"hello"])
        print(name, "answered:", bool(dealer.poll(3000)))
        dealer.close()
"""


@pytest.fixture(scope="module")
def engines(installation: Installation, tiny_spec: dict[str, Any]) -> Iterator[Engines]:
    """Two engines with CURVE."""
    with temporary_space(installation.cluster) as space:
        found = Engines(space, "curved")
        found.apply(
            replicas=RANKS,
            **tiny_spec,
            transport={"security": "Curve"},
            drain={"deadlineSeconds": DRAIN_SECONDS},
        )
        found.wait_ready(RANKS)
        yield found


def client_pod(engines: Engines, installation: Installation, name: str, *command: str) -> Tree:
    """Return a pod of an application: it mounts the key and the addresses."""
    volumes = {
        "key": {"secret": {"secretName": f"{engines.name}-client"}},
        "addresses": {"configMap": {"name": f"{engines.name}-client-addresses"}},
    }
    container = {
        "name": "main",
        "image": installation.engine_image,
        "imagePullPolicy": "Never",
        "command": ["python", "-c", *command],
        "env": [{"name": "ENGINECORE_CLIENT_KEY_FILE", "value": "/key/secret-key"}],
        "volumeMounts": [{"name": volume, "mountPath": f"/{volume}"} for volume in volumes],
    }
    spec = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": volume, **source} for volume, source in volumes.items()],
    }
    meta = {"name": name, "labels": {client_label(engines.name): "true"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def phase(space: Space, name: str) -> str:
    pod = space.get("pods", name)
    return str(pod["status"].get("phase")) if pod else ""


def log(space: Space, name: str) -> list[str]:
    return space.kubectl.run("logs", name, check=False).splitlines()


def test_a_pod_without_a_key_gets_no_byte(engines: Engines, installation: Installation) -> None:
    addresses = engines.status()["clientAddresses"]
    for field in ("input_address", "output_address"):
        host, _, port = addresses[field][0].removeprefix("tcp://").rpartition(":")
        name = f"knock-{port}"
        pod = client_pod(engines, installation, name, KNOCK, host, port, addresses["server_key"][0])
        del pod["spec"]["volumes"]
        del pod["spec"]["containers"][0]["volumeMounts"]
        engines.space.kubectl.apply(pod)
        eventually(lambda name=name: phase(engines.space, name) == "Succeeded", "it tried", 60, 0.5)
        assert log(engines.space, name) == [
            "beyond the greeting: b''",
            "no key answered: False",
            "own key answered: False",
        ]


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_roles(engines: Engines, kind: str, make_face: Callable[..., Face], tmp_path: Path) -> None:
    face = make_face(kind, engines)
    assert sum(len(o.new_token_ids) for o in face.generate(PROMPT, params(8))) == 8
    with pytest.raises(NotPermittedError, match="needs the admin role"):
        face.control("reset_prefix_cache")
    admin = make_face(kind, engines, **engines.key_options(tmp_path, "admin"))
    assert admin.control("reset_prefix_cache")


def test_the_coordinator_is_reported_to(engines: Engines) -> None:
    """By engines with its key."""
    pods = engines.space.find_all("pods")
    (coordinator,) = [p for p in pods if p["metadata"]["name"].startswith("curved-coordinator")]
    name = coordinator["metadata"]["name"]
    code = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080/status').read())"

    def ranks() -> int:
        return engines.space.kubectl.run("exec", name, "--", "python", "-c", code).count('"rank"')

    eventually(lambda: ranks() == RANKS, "both ranks report", 30, 1.0)


def test_keys_change_under_load(
    engines: Engines, installation: Installation, make_face: Callable[..., Face], tmp_path: Path
) -> None:
    """A client that mounts its key goes on; one that has kept the old key is shut out."""
    space = engines.space
    directory = tmp_path / "old"
    directory.mkdir()
    old = engines.key_options(directory)
    before = engines.status()["clientAddresses"]
    space.kubectl.apply(client_pod(engines, installation, "load", LOAD))

    def served() -> int:
        lines = log(space, "load")
        assert phase(space, "load") in ("Pending", "Running"), lines[-40:]
        return int(lines[-1]) if lines and lines[-1].isdecimal() else 0

    eventually(lambda: served() > 20, "requests are served", 60, 0.5)
    keys = {"keys": {"generation": 2}}
    space.kubectl.patch("enginecluster", engines.name, {"spec": keys})

    def step() -> str:
        served()
        return str(engines.status().get("keys", {}).get("step"))

    for name, seconds in (
        ("Listing", 20.0),
        ("Publishing", STEP_SECONDS),
        ("Replacing", STEP_SECONDS),
        ("Retiring", ROLLOUT_SECONDS),
        ("Settled", STEP_SECONDS + DRAIN_SECONDS),
    ):
        eventually(lambda name=name: step() == name, f"step {name}", seconds, 0.3)
    after = engines.wait_ready(RANKS)["clientAddresses"]
    assert not {*before["server_key"]} & {*after["server_key"]}
    assert before["stats_server_key"] != after["stats_server_key"]
    before_more = served()
    eventually(lambda: served() > before_more + 20, "with the new keys, too", 60, 0.5)
    # What was taken off the list is out of pods' files by now, or in a moment.
    eventually(lambda: is_refused(make_face, engines, old), "the old key is out", STEP_SECONDS, 1.0)
    after_all = served()
    eventually(lambda: served() > after_all + 20, "and it goes on", 60, 0.5)
    space.kubectl.run("exec", "load", "--", "python", "-c", "import os; os.kill(1, 15)")
    eventually(lambda: phase(space, "load") == "Succeeded", "no request was lost", 60, 0.5)
    assert [engines.epoch(rank) for rank in range(RANKS)] == [2] * RANKS


def is_refused(make_face: Callable[..., Face], engines: Engines, key: dict[str, str]) -> bool:
    try:
        make_face("sync", engines, **key)
    except AuthenticationError as error:
        return "have that key listed" in str(error)
    return False
