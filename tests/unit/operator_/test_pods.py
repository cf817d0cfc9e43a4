"""The pod of an epoch: what it is given, and what a user's template may change."""

from typing import Any

import msgspec
import pytest

from enginecore_operator.plan.pods import build_pod, model_path
from enginecore_operator.plan.revision import compute_revision
from enginecore_wire.contract import ServerConfig
from support.operator_objects import RENDERING, observed_core, read_core_spec


def pod(cluster: str = "smollm", **spec: Any) -> dict[str, Any]:
    owner = observed_core(cluster=cluster).metadata
    return build_pod(owner, read_core_spec(**spec), 3, "abc", RENDERING)


def engine(manifest: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = manifest["spec"]["containers"][0]
    return container


def environment(manifest: dict[str, Any]) -> dict[str, Any]:
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in engine(manifest)["env"]}


def config(manifest: dict[str, Any]) -> ServerConfig:
    text = environment(manifest)["ENGINECORE_CONFIG"].replace("$$", "$")
    return msgspec.json.decode(text, type=ServerConfig)


def test_pod_is_hardened() -> None:
    spec = pod()["spec"]
    assert spec["restartPolicy"] == "Never"
    assert spec["enableServiceLinks"] is False
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    context = engine(pod())["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}


def test_identity() -> None:
    manifest = pod()
    meta, spec = manifest["metadata"], manifest["spec"]
    assert meta["name"] == "smollm-0-3"
    assert spec["hostname"] == "smollm-0"
    assert spec["subdomain"] == "smollm-engines"
    assert meta["labels"]["enginecore.dev/epoch"] == "3"
    assert meta["labels"]["enginecore.dev/cluster"] == "smollm"
    assert meta["labels"]["enginecore.dev/addressable"] == "true"
    assert meta["ownerReferences"][0]["uid"] == "uid-smollm-0"
    assert environment(manifest)["ENGINECORE_POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_engine_of_no_cluster_has_no_subdomain() -> None:
    manifest = pod(cluster="")
    assert "subdomain" not in manifest["spec"]
    assert "enginecore.dev/cluster" not in manifest["metadata"]["labels"]


def test_config_reaches_the_server() -> None:
    found = config(
        pod(
            rank=2,
            model={"name": "org/tiny", "servedName": "tiny", "vocabSize": 100},
            runtime={"type": "custom", "image": "i", "command": ["run", "$(X)"], "args": ["--y"]},
            transport={"inputPort": 1111, "outputPort": 2222, "httpPort": 3333, "maxClients": 9},
            liveness={"pingSeconds": 0.5},
            drain={"deadlineSeconds": 7},
            coordinatorAddress="tcp://c.lab.svc:5559",
        )
    )
    assert (found.name, found.cluster, found.rank, found.epoch) == ("smollm-0", "smollm", 2, 3)
    assert found.model.served_name == "tiny"
    assert found.model.vocab_size == 100
    assert found.runtime.command == ["run", "$(X)"]
    assert found.transport.input_port == 1111
    assert found.transport.max_clients == 9
    assert found.liveness.ping_seconds == 0.5
    assert found.drain_deadline_seconds == 7.0
    assert found.coordinator_address == "tcp://c.lab.svc:5559"


@pytest.mark.parametrize(
    ("model", "path", "mount"),
    [
        ({"name": "org/tiny"}, "/models/tiny", None),
        ({"name": "/opt/tiny"}, "/opt/tiny", None),
        ({"name": "t", "source": {"hostPath": "/data/tiny"}}, "/models/tiny", "/models/tiny"),
        ({"name": "t", "source": {"hostPath": "/d/t.gguf/"}}, "/models/t.gguf", "/models/t.gguf"),
        ({"name": "t", "source": {"pvc": {"claimName": "c"}}}, "/models", "/models"),
        (
            {"name": "t", "source": {"pvc": {"claimName": "c", "path": "a/b"}}},
            "/models/a/b",
            "/models",
        ),
    ],
)
def test_model_files(model: dict[str, Any], path: str, mount: str | None) -> None:
    spec = read_core_spec(model=model)
    assert model_path(spec.model) == path
    mounts = {m["name"]: m for m in engine(pod(model=model))["volumeMounts"]}
    assert ("model" in mounts) == (mount is not None)
    if mount is not None:
        assert mounts["model"] == {"name": "model", "mountPath": mount, "readOnly": True}


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/data/tiny", "Directory"), ("/data/SmolLM2-1.7B/", "Directory"), ("/d/t.GGUF", "File")],
)
def test_a_host_path_must_be_there(path: str, kind: str) -> None:
    volumes = {v["name"]: v for v in pod(model={"name": "t", "source": {"hostPath": path}})["spec"]
               ["volumes"]}  # fmt: skip
    assert volumes["model"]["hostPath"] == {"path": path, "type": kind}


@pytest.mark.parametrize(
    ("accelerator", "limits"),
    [
        ({}, {"nvidia.com/gpu": "1"}),
        ({"count": 4}, {"nvidia.com/gpu": "4"}),
        ({"name": "amd.com/gpu", "count": 2}, {"amd.com/gpu": "2"}),
        ({"count": 0}, {}),
    ],
)
def test_accelerators(accelerator: dict[str, Any], limits: dict[str, str]) -> None:
    assert engine(pod(accelerator=accelerator))["resources"].get("limits", {}) == limits


def test_kubelet_waits_for_the_drain() -> None:
    assert pod(drain={"deadlineSeconds": 100})["spec"]["terminationGracePeriodSeconds"] > 100


def test_user_environment_wins_over_a_default() -> None:
    manifest = pod(runtime={"env": [{"name": "HOME", "value": "/cache"}, {"name": "A"}]})
    assert environment(manifest)["HOME"] == "/cache"
    assert [v["name"] for v in engine(manifest)["env"]].count("HOME") == 1


def test_template_is_merged() -> None:
    manifest = pod(
        podTemplate={
            "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
            "spec": {
                "nodeSelector": {"pool": "gpu"},
                "tolerations": [{"operator": "Exists"}],
                "affinity": {"nodeAffinity": {}},
                "priorityClassName": "high",
                "serviceAccountName": "reader",
                "securityContext": {"fsGroup": 7, "runAsUser": 1000},
                "volumes": [{"name": "cache", "emptyDir": {}}],
                "initContainers": [{"name": "fetch", "image": "f"}],
                "containers": [
                    {"name": "sidecar", "image": "s"},
                    {
                        "name": "engine",
                        "env": [{"name": "MORE", "value": "1"}],
                        "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
                        "imagePullPolicy": "Always",
                        "securityContext": {"runAsGroup": 5},
                    },
                ],
            },
        }
    )
    meta, spec = manifest["metadata"], manifest["spec"]
    assert meta["labels"]["team"] == "a"
    assert meta["labels"]["enginecore.dev/core"] == "smollm-0"
    assert meta["annotations"] == {"note": "b"}
    assert spec["nodeSelector"] == {"pool": "gpu"}
    assert spec["priorityClassName"] == "high"
    assert spec["serviceAccountName"] == "reader"
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["fsGroup"] == 7
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert {v["name"] for v in spec["volumes"]} == {"tmp", "run", "dshm", "cache"}
    assert [c["name"] for c in spec["containers"]] == ["engine", "sidecar"]
    assert [c["name"] for c in spec["initContainers"]] == ["fetch"]
    assert environment(manifest)["MORE"] == "1"
    assert engine(manifest)["volumeMounts"][-1]["mountPath"] == "/cache"
    assert engine(manifest)["imagePullPolicy"] == "Always"
    assert engine(manifest)["securityContext"]["runAsGroup"] == 5
    assert engine(manifest)["securityContext"]["readOnlyRootFilesystem"] is True
    assert engine(manifest)["command"] == ["enginecore-server"]


@pytest.mark.parametrize(("path", "gone"), [("/dev/shm", "dshm"), ("/tmp/", "tmp")])
def test_a_volume_of_the_template_takes_the_place_of_ours(path: str, gone: str) -> None:
    mount = {"name": "mine", "mountPath": path}
    template: dict[str, Any] = {
        "volumes": [{"name": "mine", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}],
        "containers": [{"name": "engine", "volumeMounts": [mount]}],
    }
    manifest = pod(podTemplate={"spec": template})
    places = [m["mountPath"] for m in engine(manifest)["volumeMounts"]]
    assert len({place.rstrip("/") for place in places}) == len(places)
    assert engine(manifest)["volumeMounts"][-1] == mount
    volumes = {"tmp", "run", "dshm", "mine"}
    assert {v["name"] for v in manifest["spec"]["volumes"]} == volumes - {gone}
    template["initContainers"] = [{"name": "fetch", "volumeMounts": [{"name": gone}]}]
    manifest = pod(podTemplate={"spec": template})
    assert {v["name"] for v in manifest["spec"]["volumes"]} == volumes


@pytest.mark.parametrize("field", ["env", "volumeMounts", "securityContext", "lifecycle"])
@pytest.mark.parametrize("where", ["containers", "initContainers"])
def test_null_in_a_container_is_as_good_as_absent(where: str, field: str) -> None:
    """As a CRD of an earlier release let it in, under which it may be stored."""
    name = "engine" if where == "containers" else "fetch"
    absent = {"name": name}
    made = pod(podTemplate={"spec": {where: [{**absent, field: None}]}})
    expected = pod(podTemplate={"spec": {where: [absent]}})
    if where == "initContainers":
        assert made["spec"][where][0].pop(field) is None
    assert {**made, "metadata": {}} == {**expected, "metadata": {}}


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"rank": 5}, True),
        ({"restart": {"limit": 2}}, True),
        ({"drain": {"deadlineSeconds": 60}}, True),
        ({"drain": {"deadlineSeconds": 61}}, False),
        ({"runtime": {"image": "other"}}, False),
        ({"runtime": {"args": ["a"]}}, False),
        ({"runtime": {"env": [{"name": "A", "value": "1"}]}}, False),
        ({"model": {"name": "tiny", "servedName": "x"}}, False),
        ({"accelerator": {"count": 2}}, False),
        ({"resources": {"limits": {"cpu": 1}}}, False),
        ({"transport": {"maxClients": 65}}, False),
        ({"liveness": {"graceSeconds": 6}}, False),
        ({"podTemplate": {"metadata": {"labels": {"a": "b"}}}}, False),
        ({"podTemplate": {"spec": {"nodeSelector": {"a": "b"}}}}, False),
        ({"coordinatorAddress": "tcp://c:1"}, False),
    ],
    ids=str,
)
def test_revision(change: dict[str, Any], same: bool) -> None:
    before = compute_revision(read_core_spec())
    assert (compute_revision(read_core_spec(**change)) == before) is same


def test_revision_is_the_same_in_every_release() -> None:
    """A renderer that changes this hash would replace every engine on upgrade."""
    assert compute_revision(read_core_spec(runtime={"image": "engine:7"})) == "cad4f054b5"
