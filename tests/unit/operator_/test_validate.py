"""The operator refuses what admission refuses, with the same paths."""

import re

import pytest

from enginecore_operator.api.v1alpha1 import EngineClusterSpec, EngineCoreSpec
from enginecore_operator.api.validate import InvalidSpecError, read_spec
from support.invalid_specs import REFUSED, Refused
from support.operator_objects import cluster_spec, core_spec


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_refused_with_path(case: Refused) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        read_spec(cluster_spec(**case.change), EngineClusterSpec)
    assert str(caught.value).startswith(case.path)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"replicas": 0},
        {"accelerator": {"count": 0}},
        {"runtime": {"type": "custom", "image": "mine:1", "command": ["run"]}},
        {"resources": {"limits": {"cpu": 2, "memory": "1.5Gi"}, "requests": {"cpu": "500m"}}},
        {"resources": {"limits": {"cpu": 1, "a/b": "1e3"}, "requests": {"cpu": "1", "a/b": "1k"}}},
        {"resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "1.01G"}}},
        {"model": {"name": "m", "source": {"pvc": {"claimName": "models", "path": "a/b"}}}},
        {"transport": {"security": "Curve"}, "keys": {"infer": ["k" * 40], "generation": 9}},
        {"fieldOfALaterVersion": True},
    ],
    ids=str,
)
def test_accepted(change: dict[str, object]) -> None:
    read_spec(cluster_spec(**change), EngineClusterSpec)


@pytest.mark.parametrize(
    ("engine", "path"),
    [
        ({"env": [{"name": "ENGINECORE_POD_IP", "value": "x"}]}, "env[0].name"),
        ({"volumeMounts": [{"name": "tmp", "mountPath": "/x"}]}, "volumeMounts[0].name"),
        ({"livenessProbe": {}}, "livenessProbe"),
    ],
)
def test_engine_container_is_guarded(engine: dict[str, object], path: str) -> None:
    container = {"name": "engine", **engine}
    spec = cluster_spec(podTemplate={"spec": {"containers": [container]}})
    with pytest.raises(InvalidSpecError) as caught:
        read_spec(spec, EngineClusterSpec)
    assert str(caught.value).startswith(f"spec.podTemplate.spec.containers[0].{path}")


NO_KEY = "#" * 40
KEYS = {"secretName": "s", "publicKey": NO_KEY, "allowedConfigMap": "c"}


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"keys": {"admin": ["k" * 40, NO_KEY]}}, "keys.admin[1]"),
        ({"keys": {"infer": [NO_KEY]}}, "keys.infer[0]"),
        ({"coordinatorAddress": "tcp://c:5559", "coordinatorKey": NO_KEY}, "coordinatorKey"),
        ({"clusterKeys": KEYS}, "clusterKeys.publicKey"),
    ],
)
def test_what_no_schema_can_tell_of_a_key(change: dict[str, object], path: str) -> None:
    spec = core_spec(transport={"security": "Curve"}, **change)
    with pytest.raises(InvalidSpecError, match=f"^{re.escape(f'spec.{path}: no public key')}"):
        read_spec(spec, EngineCoreSpec)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, True),
        ({"coordinatorKey": "k" * 40}, False),
        ({"coordinatorAddress": ""}, False),
        ({"transport": {"security": "None"}}, False),
        ({"clusterKeys": {
            "secretName": "s", "publicKey": "k" * 40, "allowedConfigMap": "c"}}, False),
    ],
    ids=str,
)  # fmt: skip
def test_a_coordinator_with_curve_has_a_key(change: dict[str, object], wrong: bool) -> None:
    secured = {"transport": {"security": "Curve"}, "coordinatorAddress": "tcp://c:5559"}
    spec = core_spec(**{**secured, **change})
    if not wrong:
        read_spec(spec, EngineCoreSpec)
        return
    with pytest.raises(InvalidSpecError, match=r"^spec\.coordinatorKey: "):
        read_spec(spec, EngineCoreSpec)
