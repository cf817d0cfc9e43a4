"""A cluster that is there already: images by the dev cluster's verb, the demo by KUBECONFIG."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import state
from devcluster.handle import ClusterHandle, held
from devcluster.locations import Locations
from support.checkpoint import fetch_checkpoint
from support.demo import ROOT, Demo, assert_shows_tokens
from support.eventually import eventually
from support.images import BuiltImage, build_images

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.model,
    pytest.mark.exclusive_node,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("given"),
]

RUN_NAME = "given"
CHANGING = ("Lease", "Node", "Event")
"""A cluster at rest writes these."""


@pytest.fixture(scope="module")
def given(devcluster_locations: Locations) -> Iterator[ClusterHandle]:
    """A node with something of its owner's on it."""
    with held(RUN_NAME, ["--tier", "node"], devcluster_locations) as cluster:
        cluster.kubectl("create", "namespace", "theirs")
        for namespace in ("theirs", "default"):
            cluster.kubectl(
                "-n", namespace, "create", "configmap", "precious", "--from-literal=a=b"
            )
            cluster.kubectl("-n", namespace, "create", "service", "clusterip", "web", "--tcp=80")
        yield cluster


@pytest.fixture(scope="module")
def images(devcluster_locations: Locations) -> dict[str, BuiltImage]:
    return build_images(("operator", "engine"), devcluster_locations.images, print)


def run_verb(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the dev cluster's command line as users do."""
    return subprocess.run(
        [sys.executable, "-m", "devcluster", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
    )


def objects(cluster: ClusterHandle) -> dict[str, object]:
    """Return kind, namespace and name → all that an object says, but how often it was written."""
    found = {}
    for scope in ("true", "false"):
        kinds = cluster.kubectl(
            "api-resources", "--verbs=list", "--output=name", f"--namespaced={scope}"
        ).stdout.split()
        listing = cluster.kubectl("get", "-A", "-o", "json", ",".join(kinds)).stdout
        for item in json.loads(listing)["items"]:
            if item["kind"] not in CHANGING:
                meta = item["metadata"]
                meta.pop("resourceVersion", None)
                found[f"{item['kind']} {meta.get('namespace', '')}/{meta['name']}"] = item
    return found


def test_images_loaded_by_the_verb_run(
    given: ClusterHandle, images: dict[str, BuiltImage], tmp_path: Path
) -> None:
    archives = [str(image.archive) for image in images.values()]
    done = run_verb("load-image", "--name", RUN_NAME, *archives)
    assert done.returncode == 0, done.stderr
    references = [image.reference for image in images.values()]
    assert done.stdout.split() == references
    assert [line for line in done.stderr.splitlines() if "importing" in line]
    for name, program in (("operator", "enginecore-coordinator"), ("engine", "enginecore-server")):
        given.kubectl(
            *("run", name, f"--image={images[name].reference}", "--image-pull-policy=Never"),
            *("--restart=Never", "--command", "--", program, "--help"),
        )
    for name in images:
        given.kubectl(
            "wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=150s"
        )
        assert "usage: enginecore-" in given.kubectl("logs", name).stdout
        given.kubectl("delete", "pod", name)


def test_what_the_verb_cannot_load_is_named(tmp_path: Path) -> None:
    missing = run_verb("load-image", "--name", RUN_NAME, str(tmp_path / "no.tar"))
    assert missing.returncode == 1
    assert f"image archive {tmp_path}/no.tar cannot be read" in missing.stderr
    elsewhere = run_verb("load-image", "--name", "nowhere", str(tmp_path / "no.tar"))
    assert elsewhere.returncode == 1
    assert "'nowhere' is not up: devcluster up --name nowhere" in elsewhere.stderr


def test_demo_on_a_given_cluster_leaves_it_as_it_was(
    given: ClusterHandle, images: dict[str, BuiltImage], tmp_path: Path
) -> None:
    for image in images.values():
        given.load_image(image.archive)
    before = objects(given)
    demo = Demo(
        os.environ
        | {
            "KUBECONFIG": str(given.kubeconfig),
            "OPERATOR_IMAGE": images["operator"].reference,
            "ENGINE_IMAGE": images["engine"].reference,
            "MODEL_PATH": str(fetch_checkpoint().parent),
        }
    )
    text = demo.up()
    assert_shows_tokens(text)
    assert f"export KUBECONFIG={given.kubeconfig} " in text
    made = objects(given)
    assert before.keys() <= made.keys()
    assert "EngineCluster default/smollm2" in made

    demo.down()

    def as_it_was() -> bool:
        now = objects(given)
        assert now.keys() == before.keys()
        assert [place for place in now if now[place] != before[place]] == []
        return True

    eventually(as_it_was, "all is as it was", 60, 1.0)
    runs = demo.clusters()
    assert f"{RUN_NAME}: tier node, {state.Verdict.RUNNING}, " in runs
    assert "demo: " not in runs, "no cluster of its own"
