"""Every field of both specs does something: where each of them shows."""

from typing import Any, NamedTuple

import pytest

from enginecore_operator.api.crdgen import build_crds
from support.key_chest import SECURED, numbered
from support.spec_effects import Tree, cluster_effects, engine_effects, find, leaf_paths


class Case(NamedTuple):
    """A change of one field (with what must go with it), and what is then where."""

    change: Tree
    shows: dict[str, Any]


def template(**spec: Any) -> Tree:
    return {"podTemplate": {"spec": spec}}


CUSTOM = {"type": "custom", "image": "mine:1", "command": ["run", "--fast"]}
VLLM = {"type": "vllm"}
SECRET = {"secretKeyRef": {"name": "s", "key": "k"}}
SIDECAR = {
    "name": "side",
    "image": "side:1",
    "command": ["serve"],
    "args": ["--x"],
    "ports": [{"containerPort": 1}],
    "resources": {"limits": {"cpu": "1"}},
}
KEY = "k" * 40
GIVEN = {"secretName": "mine", "publicKey": KEY, "allowedConfigMap": "those"}
LISTED = f"{numbered(3).public} generation-1\n{KEY} spec.keys.infer[0]\n"
SIDE = "pod spec containers side"

MOUNTED = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
ENGINE = {
    "model.name": Case(
        {"model": {"name": "org/other"}},
        {"server model path": "/models/other", "server model served_name": "org/other"},
    ),
    "model.servedName": Case(
        {"model": {"name": "tiny", "servedName": "chat"}}, {"server model served_name": "chat"}
    ),
    "model.source.hostPath": Case(
        {"model": {"name": "tiny", "source": {"hostPath": "/data/tiny"}}},
        {
            "pod spec volumes model hostPath path": "/data/tiny",
            "engine volumeMounts model mountPath": "/models/tiny",
        },
    ),
    "model.source.pvc.claimName": Case(
        {"model": {"name": "tiny", "source": {"pvc": {"claimName": "models"}}}},
        {"pod spec volumes model persistentVolumeClaim claimName": "models"},
    ),
    "model.source.pvc.path": Case(
        {"model": {"name": "tiny", "source": {"pvc": {"claimName": "models", "path": "a/b"}}}},
        {"server model path": "/models/a/b"},
    ),
    "model.vocabSize": Case(
        {"model": {"name": "tiny", "vocabSize": 77}}, {"server model vocab_size": 77}
    ),
    "runtime.type": Case({"runtime": CUSTOM}, {"server runtime type": "custom"}),
    "runtime.image": Case({"runtime": {"image": "mine:2"}}, {"engine image": "mine:2"}),
    "runtime.command": Case({"runtime": CUSTOM}, {"server runtime command": ["run", "--fast"]}),
    "runtime.args": Case(
        {"runtime": {"args": ["--seed=1"]}}, {"server runtime args 0": "--seed=1"}
    ),
    "runtime.env[].name": Case(
        {"runtime": {"env": [{"name": "MORE"}]}}, {"engine env MORE name": "MORE"}
    ),
    "runtime.env[].value": Case(
        {"runtime": {"env": [{"name": "MORE", "value": "1"}]}}, {"engine env MORE value": "1"}
    ),
    "runtime.env[].valueFrom": Case(
        {"runtime": {"env": [{"name": "MORE", "valueFrom": SECRET}]}},
        {"engine env MORE valueFrom": SECRET},
    ),
    "parallelism.tensor": Case(
        {"runtime": VLLM, "parallelism": {"tensor": 2}},
        {"server runtime args 3": "2", "engine resources limits nvidia.com/gpu": "2"},
    ),
    "parallelism.pipeline": Case(
        {"runtime": VLLM, "parallelism": {"tensor": 2, "pipeline": 3}},
        {"server runtime args 5": "3", "engine resources limits nvidia.com/gpu": "6"},
    ),
    "accelerator.name": Case(
        {"accelerator": {"name": "amd.com/gpu"}}, {"engine resources limits amd.com/gpu": "1"}
    ),
    "accelerator.count": Case(
        {"accelerator": {"count": 4}}, {"engine resources limits nvidia.com/gpu": "4"}
    ),
    "resources.requests": Case(
        {"resources": {"requests": {"cpu": "2"}}}, {"engine resources requests cpu": "2"}
    ),
    "resources.limits": Case(
        {"resources": {"limits": {"memory": "1Gi"}}}, {"engine resources limits memory": "1Gi"}
    ),
    "podTemplate.metadata.labels": Case(
        {"podTemplate": {"metadata": {"labels": {"team": "a"}}}}, {"pod metadata labels team": "a"}
    ),
    "podTemplate.metadata.annotations": Case(
        {"podTemplate": {"metadata": {"annotations": {"note": "b"}}}},
        {"pod metadata annotations note": "b"},
    ),
    "podTemplate.spec.nodeSelector": Case(
        template(nodeSelector={"pool": "gpu"}), {"pod spec nodeSelector pool": "gpu"}
    ),
    "podTemplate.spec.tolerations": Case(
        template(tolerations=[{"operator": "Exists"}]),
        {"pod spec tolerations 0 operator": "Exists"},
    ),
    "podTemplate.spec.affinity": Case(
        template(affinity={"nodeAffinity": {"x": 1}}), {"pod spec affinity nodeAffinity x": 1}
    ),
    "podTemplate.spec.topologySpreadConstraints": Case(
        template(topologySpreadConstraints=[{"maxSkew": 1}]),
        {"pod spec topologySpreadConstraints 0 maxSkew": 1},
    ),
    "podTemplate.spec.priorityClassName": Case(
        template(priorityClassName="high"), {"pod spec priorityClassName": "high"}
    ),
    "podTemplate.spec.runtimeClassName": Case(
        template(runtimeClassName="nvidia"), {"pod spec runtimeClassName": "nvidia"}
    ),
    "podTemplate.spec.schedulerName": Case(
        template(schedulerName="volcano"), {"pod spec schedulerName": "volcano"}
    ),
    "podTemplate.spec.serviceAccountName": Case(
        template(serviceAccountName="reader"), {"pod spec serviceAccountName": "reader"}
    ),
    "podTemplate.spec.imagePullSecrets": Case(
        template(imagePullSecrets=[{"name": "pull"}]), {"pod spec imagePullSecrets 0 name": "pull"}
    ),
    "podTemplate.spec.securityContext": Case(
        template(securityContext={"fsGroup": 7}), {"pod spec securityContext fsGroup": 7}
    ),
    "podTemplate.spec.hostNetwork": Case(
        template(hostNetwork=True),
        {
            "pod spec hostNetwork": True,
            "pod spec dnsPolicy": "ClusterFirstWithHostNet",
            "engine ports input hostPort": 5557,
            "engine ports output hostPort": 5558,
            "engine ports http hostPort": 8080,
        },
    ),
    "podTemplate.spec.volumes[].name": Case(
        template(volumes=[{"name": "cache", "emptyDir": {}}]),
        {"pod spec volumes cache emptyDir": {}},
    ),
    "podTemplate.spec.initContainers[].name": Case(
        template(initContainers=[{"name": "fetch", "image": "f:1"}]),
        {"pod spec initContainers fetch image": "f:1"},
    ),
    "podTemplate.spec.containers[].name": Case(
        template(containers=[SIDECAR]), {f"{SIDE} name": "side"}
    ),
    "podTemplate.spec.containers[].image": Case(
        template(containers=[SIDECAR]), {f"{SIDE} image": "side:1"}
    ),
    "podTemplate.spec.containers[].command": Case(
        template(containers=[SIDECAR]), {f"{SIDE} command": ["serve"]}
    ),
    "podTemplate.spec.containers[].args": Case(
        template(containers=[SIDECAR]), {f"{SIDE} args": ["--x"]}
    ),
    "podTemplate.spec.containers[].ports": Case(
        template(containers=[SIDECAR]), {f"{SIDE} ports 0 containerPort": 1}
    ),
    "podTemplate.spec.containers[].resources": Case(
        template(containers=[SIDECAR]), {f"{SIDE} resources limits cpu": "1"}
    ),
    **{
        f"podTemplate.spec.{where}[].{field}": Case(
            template(**{where: [{"name": "side", "image": "side:1", **value}]}),
            {f"pod spec {where} side {path}": shown},
        )
        for where in ("containers", "initContainers")
        for field, value, path, shown in (
            ("env", {"env": [{"name": "A", "value": "1"}]}, "env A value", "1"),
            ("volumeMounts[].name", MOUNTED, "volumeMounts data name", "data"),
            ("volumeMounts[].mountPath", MOUNTED, "volumeMounts data mountPath", "/data"),
            (
                "securityContext",
                {"securityContext": {"runAsUser": 7}},
                "securityContext runAsUser",
                7,
            ),
            (
                "lifecycle",
                {"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}},
                "lifecycle preStop sleep seconds",
                1,
            ),
        )
    },
    "transport.inputPort": Case(
        {"transport": {"inputPort": 7001}},
        {
            "engine ports input containerPort": 7001,
            "server transport input_port": 7001,
            "status inputAddress": "tcp://10.0.0.1:7001",
        },
    ),
    "transport.outputPort": Case(
        {"transport": {"outputPort": 7002}},
        {
            "engine ports output containerPort": 7002,
            "server transport output_port": 7002,
            "status outputAddress": "tcp://10.0.0.1:7002",
        },
    ),
    "transport.httpPort": Case(
        {"transport": {"httpPort": 7003}},
        {"engine ports http containerPort": 7003, "server transport http_port": 7003},
    ),
    "limits.frameBytes": Case(
        {"limits": {"frameBytes": 1 << 20}}, {"server limits frame_bytes": 1 << 20}
    ),
    "limits.inFlight": Case({"limits": {"inFlight": 7}}, {"server limits in_flight": 7}),
    "limits.inFlightTotal": Case(
        {"limits": {"inFlightTotal": 2000}}, {"server limits in_flight_total": 2000}
    ),
    "limits.promptTokens": Case(
        {"limits": {"promptTokens": 9}}, {"server limits prompt_tokens": 9}
    ),
    "transport.maxClients": Case(
        {"transport": {"maxClients": 9}}, {"server transport max_clients": 9}
    ),
    "transport.networkPolicy": Case({"transport": {"networkPolicy": "None"}}, {"policy": None}),
    "transport.expose": Case(
        {"transport": {"expose": "LoadBalancer"}}, {"outside spec type": "LoadBalancer"}
    ),
    "transport.security": Case(
        SECURED,
        {
            "server transport security": "Curve",
            "engine volumeMounts enginecore-key mountPath": "/etc/enginecore/key",
            "allowed data admin": f"{numbered(4).public} generation-1\n",
            "status serverKey": numbered(1).public,
        },
    ),
    "liveness.pingSeconds": Case(
        {"liveness": {"pingSeconds": 0.5}}, {"server liveness ping_seconds": 0.5}
    ),
    "liveness.lostAfterSeconds": Case(
        {"liveness": {"lostAfterSeconds": 9}}, {"server liveness lost_after_seconds": 9}
    ),
    "liveness.graceSeconds": Case(
        {"liveness": {"graceSeconds": 9}}, {"server liveness grace_seconds": 9}
    ),
    "liveness.stepDeadlineSeconds": Case(
        {"liveness": {"stepDeadlineSeconds": 9}}, {"server liveness step_deadline_seconds": 9}
    ),
    "liveness.startProgressDeadlineSeconds": Case(
        {"liveness": {"startProgressDeadlineSeconds": 9}},
        {"server liveness start_progress_deadline_seconds": 9},
    ),
    "drain.deadlineSeconds": Case(
        {"drain": {"deadlineSeconds": 100}},
        {"server drain_deadline_seconds": 100, "pod spec terminationGracePeriodSeconds": 115},
    ),
    "restart.initialSeconds": Case({"restart": {"initialSeconds": 7}}, {"waits": [7, 14]}),
    "restart.maxSeconds": Case({"restart": {"maxSeconds": 1.5}}, {"waits": [1, 1.5]}),
    "restart.limit": Case({"restart": {"limit": 2}}, {"phases": ["BackOff", "Failed"]}),
}
ENGINE_ALONE = {
    "rank": Case({"rank": 3}, {"server rank": 3, "pod metadata labels enginecore.dev/rank": "3"}),
    "coordinatorAddress": Case(
        {"coordinatorAddress": "tcp://c.lab.svc:5559"},
        {"server coordinator_address": "tcp://c.lab.svc:5559"},
    ),
    "coordinatorKey": Case(
        SECURED | {"coordinatorAddress": "tcp://c.lab.svc:5559", "coordinatorKey": KEY},
        {"server coordinator_key": KEY},
    ),
    "clusterKeys.secretName": Case(
        SECURED | {"clusterKeys": GIVEN},
        {"pod spec volumes enginecore-key secret secretName": "mine"},
    ),
    "clusterKeys.publicKey": Case(
        SECURED | {"clusterKeys": GIVEN},
        {"pod metadata annotations enginecore.dev/server-key": KEY, "status serverKey": KEY},
    ),
    "clusterKeys.allowedConfigMap": Case(
        SECURED | {"clusterKeys": GIVEN},
        {"pod spec volumes enginecore-allowed-keys configMap name": "those"},
    ),
    "keys.generation": Case(
        SECURED | {"keys": {"generation": 7}},
        {"pod spec volumes enginecore-key secret secretName": "smollm-0-keys-7"},
    ),
    "keys.infer": Case(SECURED | {"keys": {"infer": [KEY]}}, {"allowed data infer": LISTED}),
    "keys.admin": Case(
        SECURED | {"keys": {"admin": [KEY]}},
        {
            "allowed data admin": f"{numbered(4).public} generation-1\n{KEY} spec.keys.admin[0]\n",
            "status keys generation": 1,
        },
    ),
}
CLUSTER_ALONE = {
    "replicas": Case({"replicas": 4}, {"ranks": [0, 1, 2, 3]}),
    "rollout.maxUnavailable": Case({"rollout": {"maxUnavailable": 2}}, {"updated": [2, 1]}),
    "rollout.paused": Case({"rollout": {"paused": True}}, {"updated": []}),
    "keys.generation": Case(
        SECURED | {"keys": {"generation": 7}}, {"core clusterKeys secretName": "smollm-keys-7"}
    ),
    "keys.infer": Case(SECURED | {"keys": {"infer": [KEY]}}, {"allowed data infer": LISTED}),
    "keys.admin": Case(
        SECURED | {"keys": {"admin": [KEY]}},
        {"allowed data admin": f"{numbered(4).public} generation-1\n{KEY} spec.keys.admin[0]\n"},
    ),
    "coordinator.image": Case(
        {"coordinator": {"image": "load:1"}}, {"coordinator image": "load:1"}
    ),
    "coordinator.resources.requests": Case(
        {"coordinator": {"resources": {"requests": {"cpu": "1"}}}},
        {"coordinator resources requests cpu": "1"},
    ),
    "coordinator.resources.limits": Case(
        {"coordinator": {"resources": {"limits": {"cpu": "1"}}}},
        {"coordinator resources limits cpu": "1"},
    ),
}
# What a cluster makes of an engine's fields besides handing them on.
CLUSTER_BESIDE = {
    "transport.inputPort": {
        "service spec ports input port": 7001,
        "name input_address 0": "tcp://smollm-0.smollm-engines.lab.svc:7001",
    },
    "transport.outputPort": {
        "service spec ports output port": 7002,
        "name output_address 0": "tcp://smollm-0.smollm-engines.lab.svc:7002",
    },
    "transport.httpPort": {"service spec ports http port": 7003},
    "transport.security": {
        "coordinator volumeMounts enginecore-key mountPath": "/etc/enginecore/key",
        "allowed data server": f"{numbered(1).public} generation-1\n",
        "allowed data coordinator": f"{numbered(2).public} generation-1\n",
    },
}


def spec_fields(plural: str) -> set[str]:
    (version,) = build_crds()[f"{plural}.enginecore.dev.yaml"]["spec"]["versions"]
    return leaf_paths(version["schema"]["openAPIV3Schema"]["properties"]["spec"])


def assert_shows(before: Tree, after: Tree, shows: dict[str, Any]) -> None:
    for path, value in shows.items():
        assert find(after, path) == value, path
        assert find(before, path) != value, f"{path} says so without the field, too"


def test_every_field_of_an_engine_has_a_case() -> None:
    assert spec_fields("enginecores") == ENGINE.keys() | ENGINE_ALONE.keys()


def test_every_field_of_a_cluster_has_a_case() -> None:
    assert spec_fields("engineclusters") == ENGINE.keys() | CLUSTER_ALONE.keys()


@pytest.mark.parametrize("field", ENGINE | ENGINE_ALONE)
def test_field_of_an_engine(field: str) -> None:
    change, shows = (ENGINE | ENGINE_ALONE)[field]
    assert_shows(engine_effects(), engine_effects(**change), shows)


@pytest.mark.parametrize("field", CLUSTER_ALONE)
def test_field_of_a_cluster(field: str) -> None:
    change, shows = CLUSTER_ALONE[field]
    assert_shows(cluster_effects(), cluster_effects(**change), shows)


@pytest.mark.parametrize("field", ENGINE)
def test_a_cluster_hands_the_field_to_its_engines(field: str) -> None:
    change, _ = ENGINE[field]
    before, after = cluster_effects(), cluster_effects(**change)
    path = field.replace("[]", " 0").replace(".", " ")
    given = find(change, path)
    assert_shows(before, after, {f"core {path}": given, **CLUSTER_BESIDE.get(field, {})})
