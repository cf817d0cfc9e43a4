"""Tier node of the dev cluster: pods run, see each other, and leave nothing on the host."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator
from functools import partial

import pytest

from devcluster import images, network, nodeconfig
from devcluster.errors import DevclusterError
from devcluster.handle import ClusterHandle
from devcluster.locations import Locations
from support.eventually import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

WEB = "web-0.peers"
POD_URL = f"http://{WEB}:8000"
SERVICE_URL = "http://web"


def pod(name: str, command: list[str], **spec: object) -> dict[str, object]:
    container = {
        "name": "main",
        "image": images.base_reference("python"),
        "imagePullPolicy": "Never",
        "command": command,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


def service(name: str, **spec: object) -> dict[str, object]:
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8000}], **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


class Namespace:
    """One namespace with a web server pod and a pod to look from."""

    def __init__(self, cluster: ClusterHandle, name: str) -> None:
        self.cluster = cluster
        self.name = name

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl("--namespace", self.name, *arguments, stdin=stdin).stdout

    def apply(self, *resources: dict[str, object]) -> None:
        tree = {"apiVersion": "v1", "kind": "List", "items": list(resources)}
        self.kubectl("apply", "--filename=-", stdin=json.dumps(tree))

    def read(self, resource: str, path: str) -> str:
        return self.kubectl("get", resource, f"--output=jsonpath={{{path}}}")

    def run_python(self, code: str) -> str:
        return self.kubectl("exec", "shell", "--", "python3", "-c", code).strip()

    def answers(self, url: str) -> bool:
        """Says whether a pod gets the page at `url`."""
        code = f"import urllib.request; print(urllib.request.urlopen({url!r}, timeout=5).status)"
        try:
            return self.run_python(code) == "200"
        except DevclusterError:
            return False


@pytest.fixture(scope="module")
def namespace(node_cluster: ClusterHandle, devcluster_locations: Locations) -> Iterator[Namespace]:
    archive = images.build_base("python", devcluster_locations.images, print)
    node_cluster.load_image(archive)
    space = Namespace(node_cluster, "devcluster-e2e")
    node_cluster.kubectl("create", "namespace", space.name)
    serve = ["python3", "-m", "http.server", "8000"]
    space.apply(
        pod("web", serve, hostname="web-0", subdomain="peers"),
        pod("shell", ["sleep", "infinity"]),
        service("peers", clusterIP="None"),
        service("web"),
    )
    space.kubectl("wait", "--for=condition=Ready", "--timeout=150s", "pod/web", "pod/shell")
    # Ready says that a process runs; names, endpoints and packet rules follow a moment later.
    for url in (POD_URL, SERVICE_URL):
        eventually(partial(space.answers, url), f"{url} answers", 30, 0.2)
    yield space
    node_cluster.kubectl("delete", "namespace", space.name, "--wait=false")


def fetch_status(url: str) -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=5) as response:
        return int(response.status)


@pytest.mark.parametrize(
    "url",
    [
        pytest.param(POD_URL, id="pod by hostname and subdomain"),
        pytest.param(SERVICE_URL, id="service"),
    ],
)
def test_pod_reaches_pod(namespace: Namespace, url: str) -> None:
    assert namespace.answers(url)


def test_name_of_a_pod_is_its_address(namespace: Namespace) -> None:
    name = f"{WEB}.{namespace.name}.svc.{nodeconfig.DOMAIN}"
    address = namespace.run_python(f"import socket; print(socket.gethostbyname({name!r}))")
    assert address == namespace.read("pod/web", ".status.podIP")


def test_host_reaches_pod_and_service(namespace: Namespace) -> None:
    assert fetch_status(f"http://{namespace.read('pod/web', '.status.podIP')}:8000") == 200
    assert fetch_status(f"http://{namespace.read('service/web', '.spec.clusterIP')}") == 200
    assert "GET / HTTP/1.1" in namespace.kubectl("logs", "web")


def test_pod_reads_the_api_with_its_token(namespace: Namespace) -> None:
    code = (
        "import ssl, urllib.request\n"
        "folder = '/var/run/secrets/kubernetes.io/serviceaccount/'\n"
        "token = open(folder + 'token').read()\n"
        "request = urllib.request.Request('https://kubernetes.default.svc/version',\n"
        "    headers={'Authorization': 'Bearer ' + token})\n"
        "context = ssl.create_default_context(cafile=folder + 'ca.crt')\n"
        "print(urllib.request.urlopen(request, context=context, timeout=5).status)\n"
    )
    assert namespace.run_python(code) == "200"


def test_pod_cannot_leave_the_machine(namespace: Namespace) -> None:
    code = (
        "import socket\n"
        "try:\n"
        "    socket.create_connection(('198.51.100.1', 80), 5)\n"
        "except OSError as error:\n"
        "    print(error.strerror)\n"
    )
    assert namespace.run_python(code) in ("No route to host", "Network is unreachable")


def test_a_network_policy_is_enforced(namespace: Namespace) -> None:
    address = namespace.read("pod/web", ".status.podIP")
    peer = {"podSelector": {"matchLabels": {"admitted": "true"}}}
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "web"},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"from": [peer]}]},
    }
    namespace.apply(policy)
    eventually(lambda: not namespace.answers(POD_URL), "others are refused", 30, 0.2)
    assert fetch_status(f"http://{address}:8000") == 200, "the node itself is let in"
    namespace.kubectl("label", "pod", "shell", "admitted=true")
    eventually(partial(namespace.answers, POD_URL), "the labelled pod is let in", 30, 0.2)
    namespace.kubectl("label", "pod", "shell", "admitted-")
    eventually(lambda: not namespace.answers(SERVICE_URL), "by the Service neither", 30, 0.2)
    namespace.kubectl("delete", "networkpolicy", "web")
    eventually(partial(namespace.answers, POD_URL), "without it all are let in", 30, 0.2)


@pytest.mark.parametrize("address", ["10.244.77.1", "10.245.0.1"])
def test_stale_addresses_fail_at_once(node_cluster: ClusterHandle, address: str) -> None:
    with socket.socket() as client:
        client.settimeout(2)
        with pytest.raises(OSError, match=r"unreachable|No route"):
            client.connect((address, 80))


def test_kubelet_asks_who_calls(namespace: Namespace) -> None:
    port = namespace.read("node/devcluster", ".status.daemonEndpoints.kubeletEndpoint.Port")
    code = (
        "import ssl, urllib.request\n"
        f"url = 'https://{network.NODE_PLAN.server_address}:{port}/pods'\n"
        "try:\n"
        "    urllib.request.urlopen(url, context=ssl._create_unverified_context(), timeout=5)\n"
        "except urllib.error.HTTPError as error:\n"
        "    print(error.code)\n"
    )
    assert namespace.run_python(code) == "401"
