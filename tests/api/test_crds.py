"""The CRDs on a real API server: accepted, and strict (C21, C26)."""

from typing import Any

import pytest

from support.invalid_specs import REFUSED, Refused
from support.operator_cluster import engine_cluster, engine_core
from support.operator_process import Kubectl

pytestmark = pytest.mark.api


def test_client_side_apply_is_accepted(kubectl: Kubectl) -> None:
    for name in ("engineclusters.enginecore.dev", "enginecores.enginecore.dev"):
        crd = kubectl.get("crd", name)
        last = "kubectl.kubernetes.io/last-applied-configuration"
        assert last in crd["metadata"]["annotations"]
        conditions = {c["type"]: c["status"] for c in crd["status"]["conditions"]}
        assert conditions["Established"] == "True"
        assert "NonStructuralSchema" not in conditions


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_invalid_specs_are_refused(kubectl: Kubectl, case: Refused) -> None:
    message = kubectl.refused(engine_cluster(**case.change))
    assert case.path in message, message


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (engine_cluster(name="m" * 41), "metadata.name"),
        (engine_cluster(name="a.b"), "metadata.name"),
        (engine_cluster(name="0a"), "metadata.name"),
        (engine_core(name="c" * 51), "metadata.name"),
        (engine_core(rank=-1), "spec.rank"),
        (engine_core(coordinatorAddress="udp://x:1"), "spec.coordinatorAddress"),
        (engine_cluster(typo=1), "spec.typo"),
    ],
    ids=["long", "dotted", "digit first", "long core", "rank", "address", "unknown field"],
)
def test_names_ranks_and_typos(kubectl: Kubectl, document: dict[str, Any], path: str) -> None:
    message = kubectl.refused(document)
    assert path in message or "metadata.name" in message, message
    assert message


def test_valid_specs_are_taken_with_defaults(kubectl: Kubectl) -> None:
    template = {
        "metadata": {"labels": {"team": "a"}},
        "spec": {
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "volumes": [{"name": "cache", "emptyDir": {}}],
            "containers": [
                {"name": "engine", "volumeMounts": [{"name": "cache", "mountPath": "/cache"}]},
                {"name": "sidecar", "image": "x", "command": ["y"]},
            ],
        },
    }
    kubectl.apply(engine_cluster(podTemplate=template, resources={"limits": {"cpu": 1}}))
    spec = kubectl.get("enginecluster", "smollm")["spec"]
    assert spec["replicas"] == 1
    assert spec["transport"]["inputPort"] == 5557
    assert spec["podTemplate"]["spec"]["containers"][1]["command"] == ["y"]


@pytest.mark.parametrize(
    "spec",
    [
        {"runtime": {"type": "vllm"}},
        {"runtime": {"type": "vllm", "args": ["--model-impl=auto", "float32", "-O2", "-ep"]}},
        {"runtime": {"type": "vllm"}, "parallelism": {"tensor": 2}, "accelerator": {"count": 2}},
        {"runtime": {"args": ["--port", "-n"]}},
    ],
    ids=str,
)
def test_valid_vllm_specs_are_taken(kubectl: Kubectl, spec: dict[str, Any]) -> None:
    kubectl.apply(engine_cluster(**spec))
    found = kubectl.get("enginecluster", "smollm")["spec"]
    assert found["runtime"] == {"type": "torch", **spec["runtime"]}
    assert found["parallelism"] == {"tensor": 1, "pipeline": 1, **spec.get("parallelism", {})}


def test_devices_are_counted_by_parallelism_unless_the_spec_says(kubectl: Kubectl) -> None:
    kubectl.apply(engine_cluster(accelerator={}))
    assert kubectl.get("enginecluster", "smollm")["spec"]["accelerator"] == {
        "name": "nvidia.com/gpu"
    }


def test_rank_cannot_be_changed(kubectl: Kubectl) -> None:
    kubectl.apply(engine_core(rank=1))
    answer = kubectl.run(
        *("patch", "enginecore", "solo", "--type=merge", "-p", '{"spec": {"rank": 2}}'),
        check=False,
    )
    assert "spec.rank" in answer
    assert "cannot be changed" in answer


@pytest.mark.parametrize(
    ("wide", "headings"),
    [
        (
            [],
            [
                ["NAME", "MODEL", "RUNTIME", "DESIRED", "READY", "AVAILABLE", "AGE"],
                ["NAME", "RANK", "PHASE", "READY", "EPOCH", "RESTARTS", "AGE"],
            ],
        ),
        (
            ["--output=wide"],
            [
                ["NAME", "MODEL", "RUNTIME", "DESIRED", "READY", "AVAILABLE", "DEGRADED",
                 "UPDATED", "AGE"],
                ["NAME", "RANK", "PHASE", "READY", "EPOCH", "RESTARTS", "INPUT", "OUTPUT", "NODE",
                 "AGE"],
            ],
        ),
    ],
    ids=["narrow", "wide"],
)  # fmt: skip
def test_columns_that_kubectl_shows(
    kubectl: Kubectl, wide: list[str], headings: list[list[str]]
) -> None:
    kubectl.apply(engine_cluster(replicas=3), engine_core(rank=2))
    lines = kubectl.run("get", "engineclusters,enginecores", *wide).splitlines()
    assert [line.split() for line in lines if line.startswith("NAME")] == headings
    cluster, core = (line.split() for line in lines if "enginecore.dev/" in line)
    assert cluster[:4] == ["enginecluster.enginecore.dev/smollm", "tiny", "torch", "3"]
    assert core[:2] == ["enginecore.enginecore.dev/solo", "2"]
