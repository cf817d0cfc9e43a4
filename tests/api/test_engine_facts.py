"""What an engine server says of itself reaches the EngineCore's status."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from enginecore_wire.contract import EngineFacts, ServerStatus
from support.eventually import eventually
from support.operator_cluster import engine_core
from support.operator_process import Kubectl, OperatorRunner

pytestmark = [pytest.mark.api, pytest.mark.timeout(120)]

FACTS = EngineFacts(
    version="0.1.0", dtype="bfloat16", max_model_len=2048, num_gpu_blocks=99, vocab_size=49152
)


class StatusPage:
    """An HTTP server on loopback that answers as an engine server would."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.phase = "Loading"
        self.asked = 0
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page.asked += 1
                body = page.body()
                self.send_response(200 if self.path == "/status" else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        self.server = Server((host, 0), Handler)
        self.server.daemon_threads = True
        self.port = int(self.server.server_address[1])

    def body(self) -> bytes:
        ready = self.phase == "Ready"
        return msgspec.json.encode(
            ServerStatus(
                name="solo", rank=0, epoch=1, phase=self.phase, engine=FACTS if ready else None
            )
        )


@pytest.fixture(params=["127.0.0.1", "::1"])
def page(request: pytest.FixtureRequest) -> Iterator[StatusPage]:
    found = StatusPage(request.param)
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


@pytest.fixture
def real_node(kubectl: Kubectl) -> Iterator[str]:
    """A node that is not simulated; the test plays its kubelet."""
    name = f"{kubectl.namespace}-real"
    meta = {"name": name, "labels": {"pool": kubectl.namespace}}
    kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": meta})
    room = {"cpu": "4", "memory": "8Gi", "pods": "10"}
    ready = [{"type": "Ready", "status": "True", "reason": "Test", "message": ""}]
    status = {"capacity": room, "allocatable": room, "conditions": ready}
    kubectl.patch("node", name, {"status": status}, subresource="status")
    yield name
    kubectl.run("delete", "node", name)


def set_pod(kubectl: Kubectl, ip: str, *, ready: bool) -> None:
    """Say what a kubelet would of a running pod."""
    status: dict[str, Any] = {
        "phase": "Running",
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "True" if ready else "False"},
        ],
    }
    kubectl.patch("pod", "solo-1", {"status": status}, subresource="status")


def test_facts(kubectl: Kubectl, runner: OperatorRunner, page: StatusPage, real_node: str) -> None:
    operator = runner.start()
    template = {
        "nodeSelector": {"pool": kubectl.namespace},
        "tolerations": [{"operator": "Exists"}],
    }
    transport = {"httpPort": page.port}
    kubectl.apply(engine_core(transport=transport, podTemplate={"spec": template}))
    eventually(
        lambda: (
            kubectl.get("pod", "solo-1")["spec"].get("nodeName") == real_node
            if kubectl.find_all("pods")
            else False
        ),
        "scheduled",
        30,
    )
    set_pod(kubectl, page.host, ready=False)

    def status() -> dict[str, Any]:
        found: dict[str, Any] = kubectl.get("enginecore", "solo").get("status", {})
        return found

    eventually(lambda: status().get("phase") == "Loading", "the phase is shown", 20)
    assert kubectl.condition("enginecore", "solo", "FactsKnown") == ("False", "NotLoaded")
    page.phase = "Ready"
    expected = json.loads(msgspec.json.encode(FACTS))
    eventually(lambda: status().get("engine") == expected, "the facts are shown", 20)
    set_pod(kubectl, page.host, ready=True)
    eventually(lambda: status().get("phase") == "Ready", "ready", 20)
    assert kubectl.condition("enginecore", "solo", "FactsKnown") == ("True", "FactsRead")
    literal = f"[{page.host}]" if ":" in page.host else page.host
    assert status()["inputAddress"] == f"tcp://{literal}:5557"
    assert status()["pod"] == {"name": "solo-1", "ip": page.host, "node": real_node}
    # Once all is known nobody asks any more, not even after the operator came anew.
    asked = page.asked
    operator.kill()
    second = runner.start(LEASE_NAME="another")
    eventually(lambda: "this process leads" in second.text, deadline=20)
    kubectl.run("label", "pod", "solo-1", "look=again")
    eventually(lambda: 'kind="EngineCore",outcome="ok"' in second.get("/metrics"), "it looked", 20)
    assert page.asked == asked
    kubectl.run("delete", "pod", "solo-1", "--grace-period=0", "--force")
    eventually(lambda: status().get("epoch") == 2, "replaced", 20)
    assert status().get("engine") is None
