"""The pod of an EngineCore of type vllm: a stock image into which the engine server comes."""

from typing import Any

import msgspec
import pytest

from enginecore_operator.api.runtime import Runtime
from enginecore_operator.api.v1alpha1 import EngineCoreSpec
from enginecore_operator.api.validate import InvalidSpecError, read_spec
from enginecore_operator.plan.pods import build_pod
from enginecore_wire.contract import ServerConfig
from support.operator_objects import RENDERING, core_spec, observed_core
from support.spec_effects import find

ARCHIVE = "/opt/enginecore/enginecore-server.pyz"


def pod_of(**spec: Any) -> dict[str, Any]:
    core = observed_core(core_spec(**{"runtime": {"type": "vllm"}} | spec))
    return build_pod(core.metadata, read_spec(core.spec, EngineCoreSpec), 3, "rev", RENDERING)


def server_config(pod: dict[str, Any]) -> ServerConfig:
    text = find(pod, "spec containers engine env ENGINECORE_CONFIG value").replace("$$", "$")
    return msgspec.json.decode(text, type=ServerConfig)


def test_stock_image_runs_the_server_that_an_init_container_brings() -> None:
    pod = pod_of()
    engine = find(pod, "spec containers engine")
    (copier,) = pod["spec"]["initContainers"]
    assert engine["image"] == "vllm:1"
    assert engine["command"] == ["python3", ARCHIVE]
    assert copier["image"] == "server:1"
    assert copier["command"] == ["cp", "/enginecore-server.pyz", ARCHIVE]
    mounts = {container["name"]: container["volumeMounts"] for container in (engine, copier)}
    shared = {
        name: [(m["mountPath"], m.get("readOnly")) for m in found if m["name"] == copier["name"]]
        for name, found in mounts.items()
    }
    assert shared == {
        "engine": [("/opt/enginecore", True)],
        "enginecore-server": [("/opt/enginecore", None)],
    }
    assert find(pod, "spec volumes enginecore-server emptyDir") == {}
    assert copier["resources"]["requests"] == copier["resources"]["limits"]
    assert copier["securityContext"]["readOnlyRootFilesystem"] is True


def test_one_argument_list_with_the_users_at_its_end() -> None:
    pod = pod_of(
        model={"name": "org/big", "servedName": "big"},
        runtime={"type": "vllm", "image": "mine:2", "args": ["--dtype", "bfloat16"]},
        parallelism={"tensor": 2, "pipeline": 3},
    )
    config = server_config(pod)
    assert config.runtime.type == "vllm"
    assert config.runtime.args == [
        *("--served-model-name", "big", "--tensor-parallel-size", "2"),
        *("--pipeline-parallel-size", "3", "--dtype", "bfloat16"),
    ]
    assert find(pod, "spec containers engine image") == "mine:2"
    assert find(pod, "spec containers engine resources limits") == {"nvidia.com/gpu": "6"}


def test_every_rank_has_the_same_arguments() -> None:
    configs = [server_config(pod_of(rank=rank)) for rank in range(3)]
    assert len({tuple(config.runtime.args) for config in configs}) == 1


def test_variables_of_the_engine_can_be_replaced() -> None:
    own = find(pod_of(), "spec containers engine env")
    values = {variable["name"]: variable.get("value") for variable in own}
    assert values["USER"] == "enginecore"
    assert values["VLLM_HOST_IP"] == "127.0.0.1"
    runtime = {"type": "vllm", "env": [{"name": "USER", "value": "me"}]}
    theirs = find(pod_of(runtime=runtime), "spec containers engine env")
    assert [v["value"] for v in theirs if v["name"] == "USER"] == ["me"]


def test_init_containers_of_the_template_come_beside_the_operators() -> None:
    fetch = {"name": "fetch", "image": "f:1"}
    pod = pod_of(podTemplate={"spec": {"initContainers": [fetch]}})
    assert [c["name"] for c in pod["spec"]["initContainers"]] == ["enginecore-server", "fetch"]


@pytest.mark.parametrize("kind", ["torch", "custom"])
def test_images_of_our_own_bring_the_server_themselves(kind: str) -> None:
    command = {"image": "mine:1", "command": ["run"]} if kind == "custom" else {}
    pod = pod_of(runtime={"type": kind, **command})
    assert "initContainers" not in pod["spec"]
    assert find(pod, "spec containers engine command") == ["enginecore-server"]
    assert find(pod, "spec volumes enginecore-server") is None


@pytest.mark.parametrize(
    ("argument", "remedy"),
    [
        ("--tensor-parallel-size=4", "parallelism.tensor"),
        ("--pipeline_parallel_size", "parallelism.pipeline"),
        ("--served-model-name", "model.servedName"),
        ("-dp", "replicas"),
        ("--headless", "leave it out"),
    ],
)
def test_a_refused_argument_is_told_with_what_to_do_instead(argument: str, remedy: str) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        pod_of(runtime={"type": "vllm", "args": [argument]})
    assert str(caught.value).startswith("spec.runtime.args: --")
    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    "argument",
    ["--max-model-len", "--model-impl=auto", "-ep", "float32", "-O2", "-1", "--dtype", "-q"],
)
def test_other_arguments_pass(argument: str) -> None:
    broken = [
        rule.message
        for rule in Runtime.rules
        if not rule.holds(Runtime(type="vllm", args=[argument]))
    ]
    assert broken == []


def test_other_engines_may_take_the_same_words() -> None:
    assert all(rule.holds(Runtime(args=["--port", "-n"])) for rule in Runtime.rules)
