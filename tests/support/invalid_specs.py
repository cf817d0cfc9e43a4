"""Specs that are refused, and the path of the field to blame: at admission and in the operator."""

from typing import Any, NamedTuple


class Refused(NamedTuple):
    """One change of a valid EngineCluster spec that makes it invalid."""

    name: str
    change: dict[str, Any]
    path: str


CUSTOM = {"type": "custom", "image": "mine:1", "command": ["run"]}
VLLM = {"type": "vllm"}
CURVE = {"transport": {"security": "Curve"}}


def _template(**spec: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": spec}}


def _option(*words: str) -> Refused:
    return Refused(f"vllm {words}", {"runtime": VLLM | {"args": [*words]}}, "spec.runtime.args")


REFUSED = [
    Refused("negative replicas", {"replicas": -1}, "spec.replicas"),
    Refused("too many replicas", {"replicas": 5000}, "spec.replicas"),
    Refused("replicas of another type", {"replicas": "two"}, "spec.replicas"),
    Refused("port 0", {"transport": {"inputPort": 0}}, "spec.transport.inputPort"),
    Refused("port 70000", {"transport": {"httpPort": 70000}}, "spec.transport.httpPort"),
    Refused(
        "input and output port equal",
        {"transport": {"inputPort": 6000, "outputPort": 6000}},
        "spec.transport.outputPort",
    ),
    Refused(
        "http port equals a default", {"transport": {"httpPort": 5557}}, "spec.transport.httpPort"
    ),
    Refused("unknown Service", {"transport": {"expose": "Ingress"}}, "spec.transport.expose"),
    Refused("unknown security", {"transport": {"security": "Tls"}}, "spec.transport.security"),
    Refused("no generation of keys", CURVE | {"keys": {"generation": 0}}, "spec.keys.generation"),
    Refused("a short key", CURVE | {"keys": {"infer": ["k" * 39]}}, "spec.keys.infer[0]"),
    Refused("a key with a space", CURVE | {"keys": {"admin": ["k" * 39 + " "]}},
            "spec.keys.admin[0]"),
    Refused("keys without CURVE", {"transport": {"security": "None"}, "keys": {
        "infer": ["k" * 40]}}, "spec.keys"),
    Refused(
        "unknown policy",
        {"transport": {"networkPolicy": "All"}},
        "spec.transport.networkPolicy",
    ),
    Refused(
        "host network as text",
        {"podTemplate": {"spec": {"hostNetwork": "yes"}}},
        "spec.podTemplate.spec.hostNetwork",
    ),
    Refused("frames too small", {"limits": {"frameBytes": 1000}}, "spec.limits.frameBytes"),
    Refused("no request", {"limits": {"inFlight": 0}}, "spec.limits.inFlight"),
    Refused("fewer in all than of one", {"limits": {"inFlight": 9, "inFlightTotal": 8}},
            "spec.limits.inFlightTotal"),
    Refused("a negative prompt", {"limits": {"promptTokens": -1}}, "spec.limits.promptTokens"),
    Refused("no clients", {"transport": {"maxClients": 0}}, "spec.transport.maxClients"),
    Refused("unknown runtime", {"runtime": {"type": "llamacpp"}}, "spec.runtime.type"),
    Refused("empty model name", {"model": {"name": ""}}, "spec.model.name"),
    Refused("no model name", {"model": {"servedName": "x"}}, "spec.model"),
    Refused("two sources", {"model": {"name": "m", "source": {
        "hostPath": "/m", "pvc": {"claimName": "c"}}}}, "spec.model.source"),
    Refused("no source", {"model": {"name": "m", "source": {}}}, "spec.model.source"),
    Refused(
        "relative host path",
        {"model": {"name": "m", "source": {"hostPath": "models"}}},
        "spec.model.source.hostPath",
    ),
    Refused("vocabulary of nothing", {"model": {"name": "m", "vocabSize": 0}},
            "spec.model.vocabSize"),
    Refused("custom without image", {"runtime": {"type": "custom", "command": ["run"]}},
            "spec.runtime.image"),
    Refused("custom without command", {"runtime": {"type": "custom", "image": "mine:1"}},
            "spec.runtime.command"),
    Refused("torch with command", {"runtime": {"command": ["run"]}}, "spec.runtime.command"),
    Refused("vllm with command", {"runtime": VLLM | {"command": ["vllm"]}},
            "spec.runtime.command"),
    _option("--dtype", "float32", "--tensor-parallel-size", "2"),
    _option("--tensor_parallel_size=2"),
    _option("--tensor-par", "2"),
    _option("-tp2"),
    _option("-t", "4"),
    _option("-t=4"),
    _option("-as", "2"),
    _option("-d", "2"),
    _option("--pipeline-parallel-size=2"),
    _option("--served-model-name", "x"),
    _option("--model=x"),
    _option("--data-parallel-rpc-port", "1"),
    _option("--data-parallel-rank=1"),
    _option("-dpn", "1"),
    _option("--node-rank", "1"),
    _option("-r=1"),
    _option("--headless"),
    _option("--api-server-count", "2"),
    _option("--port=8000"),
    _option("--config", "/etc/vllm.yaml"),
    Refused("torch on two devices", {"parallelism": {"tensor": 2}}, "spec.parallelism"),
    Refused("custom in two stages", {"runtime": CUSTOM, "parallelism": {"pipeline": 2}},
            "spec.parallelism"),
    Refused("no tensor", {"runtime": VLLM, "parallelism": {"tensor": 0}},
            "spec.parallelism.tensor"),
    Refused(
        "fewer accelerators than tensor times pipeline",
        {"runtime": VLLM, "parallelism": {"tensor": 2, "pipeline": 2}, "accelerator": {"count": 3}},
        "spec.accelerator.count",
    ),
    Refused(
        "a variable of the operator",
        {"runtime": {"env": [{"name": "ENGINECORE_CONFIG", "value": "{}"}]}},
        "spec.runtime.env[0].name",
    ),
    Refused("negative accelerators", {"accelerator": {"count": -1}}, "spec.accelerator.count"),
    Refused("accelerator without domain", {"accelerator": {"name": "gpu"}},
            "spec.accelerator.name"),
    Refused("bad quantity", {"resources": {"limits": {"memory": "lots"}}},
            "spec.resources.limits"),
    Refused("negative quantity", {"resources": {"requests": {"cpu": "-1"}}},
            "spec.resources.requests"),
    Refused(
        "requests above limits",
        {"resources": {"requests": {"memory": "4Gi"}, "limits": {"memory": "4.2G"}}},
        "spec.resources.requests",
    ),
    Refused(
        "requests of the coordinator above limits",
        {"coordinator": {"resources": {"requests": {"cpu": 1}, "limits": {"cpu": "999m"}}}},
        "spec.coordinator.resources.requests",
    ),
    Refused("no drain deadline", {"drain": {"deadlineSeconds": 0}}, "spec.drain.deadlineSeconds"),
    Refused(
        "lost before the next ping",
        {"liveness": {"pingSeconds": 5, "lostAfterSeconds": 4}},
        "spec.liveness.lostAfterSeconds",
    ),
    Refused("ping never", {"liveness": {"pingSeconds": 0}}, "spec.liveness.pingSeconds"),
    Refused(
        "largest wait below the first",
        {"restart": {"initialSeconds": 10, "maxSeconds": 5}},
        "spec.restart.maxSeconds",
    ),
    Refused("no attempt", {"restart": {"limit": 0}}, "spec.restart.limit"),
    Refused("rollout of nothing", {"rollout": {"maxUnavailable": 0}},
            "spec.rollout.maxUnavailable"),
    Refused(
        "a label of the operator",
        {"podTemplate": {"metadata": {"labels": {"enginecore.dev/rank": "7"}}}},
        "spec.podTemplate.metadata.labels",
    ),
    Refused("a volume of the operator", _template(volumes=[{"name": "dshm", "emptyDir": {}}]),
            "spec.podTemplate.spec.volumes[0].name"),
    Refused(
        "an init container named like the engine",
        _template(initContainers=[{"name": "engine", "image": "x"}]),
        "spec.podTemplate.spec.initContainers[0].name",
    ),
    Refused(
        "an init container named like the operator's",
        _template(initContainers=[{"name": "enginecore-server", "image": "x"}]),
        "spec.podTemplate.spec.initContainers[0].name",
    ),
    Refused(
        "another image for the engine",
        _template(containers=[{"name": "engine", "image": "x"}]),
        "spec.podTemplate.spec.containers[0].image",
    ),
    *(
        Refused(
            f"{field} of {where} as {value!r}",
            _template(**{where: [{"name": name, field: value}]}),
            f"spec.podTemplate.spec.{where}[0].{field}{blamed}",
        )
        for where, name in (("containers", "engine"), ("containers", "beside"),
                            ("initContainers", "fetch"))
        for field, value, blamed in (
            ("env", "A=1", ""),
            ("env", ["A=1"], "[0]"),
            ("volumeMounts", "/data", ""),
            ("volumeMounts", ["/data"], "[0]"),
            ("volumeMounts", [{"name": "data", "mountPath": 5}], "[0].mountPath"),
            ("volumeMounts", [{"name": {}, "mountPath": "/data"}], "[0].name"),
            ("securityContext", "restricted", ""),
            ("lifecycle", ["preStop"], ""),
        )
    ),
    Refused(
        "a container without a name",
        _template(containers=[{"image": "x"}]),
        "spec.podTemplate.spec.containers[0].name",
    ),
]  # fmt: skip
