"""The demo without a way to its cluster: it says what is missing before it changes anything."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from devcluster import binaries
from devcluster.locations import Locations
from support.operator_cluster import engine_cluster
from support.operator_process import Kubectl

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("prepared_cluster")]

ROOT = Path(__file__).resolve().parents[2]
NOBODY = """
apiVersion: v1
kind: Config
current-context: nobody
clusters: [{name: nobody, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: nobody, context: {cluster: nobody, user: nobody}}]
users: [{name: nobody, user: {}}]
"""


def run(*command: str, **environ: str) -> tuple[int, str]:
    """Run a program of examples/; return its status and all it prints."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        | {"PYTHONPATH": "tests"}
        | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("verb", ["up", "down"])
def test_a_kubeconfig_that_is_not_there(verb: str) -> None:
    status, text = run("examples/demo", verb, KUBECONFIG="/no/such/file")
    assert status == 1
    (line,) = text.strip().splitlines()
    assert line.startswith("KUBECONFIG=/no/such/file: there is no such file")


def test_a_server_that_does_not_answer(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(NOBODY)
    status, text = run("examples/demo", "up", KUBECONFIG=f"/no/such/file:{file}")
    assert status == 1
    assert "the API server of KUBECONFIG does not answer: " in text
    assert "127.0.0.1:1" in text
    assert "helm" not in text


def test_the_client_without_a_kubeconfig(devcluster_locations: Locations, tmp_path: Path) -> None:
    kubectl = binaries.build(["kubectl"], devcluster_locations.cache, print)["kubectl"]
    path = f"{kubectl.parent}:{os.environ['PATH']}"
    status, text = run("examples/demo/client.py", PATH=path, HOME=str(tmp_path))
    assert status == 1
    assert "kubectl knows of no cluster: export KUBECONFIG=FILE" in text
    assert "memcache" not in text


def test_the_client_before_an_engine_is_ready(
    kubectl: Kubectl, devcluster_locations: Locations
) -> None:
    kubectl.apply(engine_cluster())
    program = binaries.build(["kubectl"], devcluster_locations.cache, print)["kubectl"]
    status, text = run(
        *("examples/demo/client.py", "--cluster=smollm", f"--namespace={kubectl.namespace}"),
        PATH=f"{program.parent}:{os.environ['PATH']}",
        KUBECONFIG=str(kubectl.cluster.kubeconfig),
    )
    assert status == 1
    assert text.strip() == (
        "enginecluster smollm has no Ready engine yet: wait until it is Available"
    )


def test_the_usage_names_a_command_that_works() -> None:
    status, text = run("examples/demo", "sideways")
    assert status == 2
    assert "PYTHONPATH=tests python examples/demo up|down" in text
