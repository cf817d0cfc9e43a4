"""Pods that clients run in: what they reach of engines, and tokens that they get."""

import json
from dataclasses import dataclass
from typing import Any

from support.space import Space

READY_SECONDS = 60
CONNECT = """
import json, socket, sys
reached = []
for place in sys.argv[1:]:
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), 3).close()
    except OSError:
        continue
    reached.append(place)
print(json.dumps(reached))
"""
ASK_EVERY_ENGINE = """
import json, os, sys
from enginecore_client import SamplingParams, SyncMPClient
from enginecore_wire.requests import OutputKind
addresses = json.loads(sys.argv[1])
if sys.argv[2]:
    os.environ["ENGINECORE_CLIENT_KEY_FILE"] = "/tmp/client-key"
    with open("/tmp/client-key", "w") as file:
        file.write(sys.argv[2])
params = SamplingParams(max_tokens=4, ignore_eos=True, output_kind=OutputKind.DELTA)
with SyncMPClient(client_addresses=addresses, ready_timeout=30) as client:
    for rank, _ in enumerate(addresses["input_address"]):
        outputs = client.generate([1, 2, 3], params, data_parallel_rank=rank)
        print(sum(len(output.new_token_ids) for output in outputs))
"""


def client_label(name: str) -> str:
    """Return the label of clients of a cluster; of namespaces whose clients are let in."""
    return f"client.enginecore.dev/{name}"


@dataclass(frozen=True)
class ClientPod:
    """A pod that waits to be asked; its image has the client."""

    space: Space
    name: str

    def start(self, image: str, cluster: str = "") -> None:
        """Create it, as a client of a cluster or of none, and wait until it runs."""
        marks = {client_label(cluster): "true"} if cluster else {}
        container = {
            "name": "main",
            "image": image,
            "imagePullPolicy": "Never",
            "command": ["sleep", "infinity"],
        }
        self.space.kubectl.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": self.name, "labels": marks},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
            }
        )
        ready = ("--for=condition=Ready", f"--timeout={READY_SECONDS}s")
        self.space.kubectl.run("wait", *ready, f"pod/{self.name}")

    def label(self, *labels: str) -> None:
        """Change its labels, in kubectl's words."""
        self.space.kubectl.run("label", "pod", self.name, *labels)

    def reached(self, *places: str) -> list[str]:
        """Return those of `places` (host:port) that take a connection from here."""
        found: list[str] = json.loads(self._python(CONNECT, *places))
        return found

    def ask(self, addresses: dict[str, Any], key: str = "") -> list[int]:
        """Send a request to each engine, with a secret key if there is one; return how many tokens
        came."""
        done = self._python(ASK_EVERY_ENGINE, json.dumps(addresses), key)
        return [int(count) for count in done.split()]

    def _python(self, code: str, *arguments: str) -> str:
        return self.space.kubectl.run("exec", self.name, "--", "python", "-c", code, *arguments)
