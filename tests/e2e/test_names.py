"""Engines and coordinators found by, and bound to, the names of a headless Service (C8)."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest

from enginecore_wire.contract import (
    CONFIG_ENV,
    HTTP_PORT,
    INPUT_PORT,
    OUTPUT_PORT,
    PUBLISH_PORT,
    REPORT_PORT,
    TransportConfig,
)
from support.client_pod import ClientPod
from support.eventually import eventually
from support.installation import Installation, tiny_model_args
from support.pod import torch_config
from support.space import Engines, Space

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("installation", "lab"),
]

START_SECONDS = 90.0


def test_clients_in_the_cluster_find_engines_by_name(
    lab: Engines, installation: Installation, tmp_path: Path
) -> None:
    """By the addresses the operator publishes for static settings."""
    lab.wait_ready(2)
    data = lab.space.kubectl.get("configmap", f"{lab.name}-client-addresses")["data"]
    addresses = json.loads(data["client_addresses_dns.json"])
    assert all(".svc:" in address for address in addresses["input_address"])
    key = Path(lab.key_options(tmp_path)["client_key"]).read_text()
    client = ClientPod(lab.space, "client")
    client.start(installation.engine_image, lab.name)
    assert client.ask(addresses, key) == [4, 4]


def pod(name: str, image: str, command: list[str], **spec: Any) -> dict[str, Any]:
    """Return a pod that the headless Service `peers` names."""
    container = {"name": "main", "image": image, "command": command, "imagePullPolicy": "Never"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"peers": "yes"}},
        "spec": {
            "hostname": name,
            "subdomain": "peers",
            "terminationGracePeriodSeconds": 5,
            "containers": [container | spec.pop("container", {})],
            **spec,
        },
    }


def test_server_and_coordinator_bound_to_their_names(
    space: Space, installation: Installation, tiny_model: dict[str, Any]
) -> None:
    def place(host: str) -> str:
        return f"{host}.peers.{space.name}.svc.cluster.local"

    model = tiny_model["source"]["hostPath"]
    config = torch_config(
        Path(model),
        *tiny_model_args(),
        rank=0,
        transport=TransportConfig(host=place("engine")),
        coordinator_address=f"tcp://{place('coordinator')}:{REPORT_PORT}",
    )
    environment = {"name": CONFIG_ENV, "value": msgspec.json.encode(config).decode()}
    mount = {"name": "model", "mountPath": model, "readOnly": True}
    listen = [
        *("--report-address", f"tcp://{place('coordinator')}:{REPORT_PORT}"),
        *("--publish-address", f"tcp://{place('coordinator')}:{PUBLISH_PORT}"),
        *("--http-host", place("coordinator")),
    ]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "peers"},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"peers": "yes"},
        },
    }
    space.kubectl.apply(
        service,
        pod("coordinator", installation.operator_image, ["enginecore-coordinator", *listen]),
        pod(
            "engine",
            installation.engine_image,
            ["enginecore-server"],
            container={"env": [environment], "volumeMounts": [mount]},
            volumes=[{"name": "model", "hostPath": {"path": model}}],
        ),
    )

    def page(name: str, path: str) -> Any:
        found = space.get("pods", name)
        address = (found or {}).get("status", {}).get("podIP")
        assert address
        try:
            with urllib.request.urlopen(f"http://{address}:{HTTP_PORT}{path}", timeout=5) as answer:
                return json.loads(answer.read())
        except OSError as error:
            raise AssertionError(space.kubectl.run("logs", name, check=False)) from error

    def ready() -> bool:
        return bool(page("engine", "/status")["phase"] == "Ready")

    eventually(ready, "the engine serves on its name", START_SECONDS, 0.3)

    def reported() -> bool:
        return [row["rank"] for row in page("coordinator", "/status")["ranks"]] == [0]

    eventually(reported, "the coordinator is reported to by name", 20, 0.3)
    addresses = {
        "input_address": [f"tcp://{place('engine')}:{INPUT_PORT}"],
        "output_address": [f"tcp://{place('engine')}:{OUTPUT_PORT}"],
        "stats_update_address": f"tcp://{place('coordinator')}:{PUBLISH_PORT}",
    }
    assert ClientPod(space, "coordinator").ask(addresses) == [4]
