"""Build the pod of one epoch of an EngineCore."""

import posixpath
from typing import Any, Final

import msgspec

from enginecore_operator.api import labels
from enginecore_operator.api.model import MODEL_FILE_SUFFIXES, Model, ModelSource
from enginecore_operator.api.v1alpha1 import EngineCoreSpec
from enginecore_operator.plan import engine, key_files, names
from enginecore_operator.plan.observed import ObjectMeta
from enginecore_operator.plan.rendering import (
    Rendering,
    container_security_context,
    owner_reference,
    pod_security_context,
)
from enginecore_operator.plan.template import merge_template
from enginecore_wire.contract import (
    CONFIG_ENV,
    HEALTH_PATH,
    POD_IP_ENV,
    READY_PATH,
    LivenessConfig,
    ModelConfig,
    RuntimeConfig,
    ServerConfig,
    TransportConfig,
)
from enginecore_wire.control import Limits

MODELS_PATH: Final = "/models"
RUN_PATH: Final = "/run/enginecore"
SHM_SIZE: Final = "1Gi"
GRACE_MARGIN_SECONDS: Final = 15
"""Between the drain deadline and the kubelet's SIGKILL: to send the last outputs and exit."""


def build_pod(
    owner: ObjectMeta, spec: EngineCoreSpec, epoch: int, revision: str, rendering: Rendering
) -> dict[str, Any]:
    """Build the manifest of the pod of `epoch`; `owner` is the EngineCore."""
    cluster = owner.controller_name(labels.CLUSTER_KIND)
    pod_spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "hostname": owner.name,
        "terminationGracePeriodSeconds": spec.drain.deadline_seconds + GRACE_MARGIN_SECONDS,
        "securityContext": pod_security_context(),
        "containers": [_engine_container(owner, spec, epoch, rendering)],
        "volumes": [
            *_volumes(spec.model.source),
            *engine.server_volumes(spec),
            *key_files.server_volumes(spec),
        ],
    }
    if spec.pod_template.spec.host_network:
        # Without it the pod asks the node's DNS server, which knows no Service.
        pod_spec["dnsPolicy"] = "ClusterFirstWithHostNet"
    copier = engine.server_copier(spec, rendering)
    if copier:
        pod_spec["initContainers"] = copier
    if cluster:
        pod_spec["subdomain"] = names.engines_service_name(cluster)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": names.pod_name(owner.name, epoch),
            "namespace": owner.namespace,
            "labels": _labels(owner, spec, epoch, revision, cluster),
            **key_files.annotations(spec),
            "ownerReferences": [owner_reference(labels.CORE_KIND, owner)],
        },
        "spec": pod_spec,
    }
    return merge_template(pod, spec.pod_template)


def build_config(owner: ObjectMeta, spec: EngineCoreSpec, epoch: int) -> ServerConfig:
    """Build what the engine server reads from its environment."""
    return ServerConfig(
        name=owner.name,
        cluster=owner.controller_name(labels.CLUSTER_KIND),
        rank=spec.rank,
        epoch=epoch,
        model=ModelConfig(
            path=model_path(spec.model),
            served_name=spec.model.served_name or spec.model.name,
            vocab_size=spec.model.vocab_size,
        ),
        runtime=RuntimeConfig(
            type=spec.runtime.type,
            command=spec.runtime.command,
            args=engine.engine_arguments(spec),
        ),
        transport=TransportConfig(
            input_port=spec.transport.input_port,
            output_port=spec.transport.output_port,
            http_port=spec.transport.http_port,
            max_clients=spec.transport.max_clients,
            **key_files.transport_settings(spec),
        ),
        liveness=LivenessConfig(
            ping_seconds=spec.liveness.ping_seconds,
            lost_after_seconds=spec.liveness.lost_after_seconds,
            grace_seconds=spec.liveness.grace_seconds,
            step_deadline_seconds=spec.liveness.step_deadline_seconds,
            start_progress_deadline_seconds=spec.liveness.start_progress_deadline_seconds,
        ),
        limits=Limits(
            frame_bytes=spec.limits.frame_bytes,
            in_flight=spec.limits.in_flight,
            in_flight_total=spec.limits.in_flight_total,
            prompt_tokens=spec.limits.prompt_tokens,
        ),
        drain_deadline_seconds=float(spec.drain.deadline_seconds),
        coordinator_address=spec.coordinator_address or None,
        **key_files.coordinator_settings(spec),
    )


def model_path(model: Model) -> str:
    """Where the model's files are in the pod."""
    source = model.source
    if source is not None and source.host_path is not None:
        # The last component stays, as loaders tell a GGUF file by its name.
        return posixpath.join(MODELS_PATH, posixpath.basename(source.host_path.rstrip("/")))
    if source is not None and source.pvc is not None:
        return posixpath.join(MODELS_PATH, source.pvc.path).rstrip("/")
    if model.name.startswith("/"):
        return model.name
    return posixpath.join(MODELS_PATH, posixpath.basename(model.name.rstrip("/")))


def _labels(
    owner: ObjectMeta, spec: EngineCoreSpec, epoch: int, revision: str, cluster: str
) -> dict[str, str]:
    found = {
        **names.common_labels(cluster or owner.name),
        labels.CORE: owner.name,
        labels.RANK: str(spec.rank),
        labels.EPOCH: str(epoch),
        labels.REVISION: revision,
        labels.COMPONENT: labels.ENGINE,
        labels.ADDRESSABLE: "true",
    }
    if cluster:
        found[labels.CLUSTER] = cluster
    return found


def _engine_container(
    owner: ObjectMeta, spec: EngineCoreSpec, epoch: int, rendering: Rendering
) -> dict[str, Any]:
    return {
        "name": labels.ENGINE_CONTAINER,
        "image": engine.engine_image(spec, rendering),
        "imagePullPolicy": rendering.image_pull_policy,
        "command": engine.server_command(spec),
        "env": _environment(build_config(owner, spec, epoch), spec),
        "ports": _ports(spec),
        "resources": _resources(spec),
        "securityContext": container_security_context(),
        # The last lines of a failed engine's log reach the pod's status, and from there ours.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            *_mounts(spec.model.source),
            *engine.server_mounts(spec),
            *key_files.server_mounts(spec),
        ],
        **_probes(),
    }


def _ports(spec: EngineCoreSpec) -> list[dict[str, Any]]:
    """Name the ports; on the node's network the scheduler has to know that they are taken there."""
    transport = spec.transport
    given = {
        "input": transport.input_port,
        "output": transport.output_port,
        "http": transport.http_port,
    }
    ports: list[dict[str, Any]] = [
        {"name": name, "containerPort": port} for name, port in given.items()
    ]
    if spec.pod_template.spec.host_network:
        return [{**port, "hostPort": port["containerPort"]} for port in ports]
    return ports


def _environment(config: ServerConfig, spec: EngineCoreSpec) -> list[dict[str, Any]]:
    # The kubelet replaces $(NAME) in values; $$ stands for one dollar.
    encoded = msgspec.json.encode(config).decode().replace("$", "$$")
    own: list[dict[str, Any]] = [
        {"name": POD_IP_ENV, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": CONFIG_ENV, "value": encoded},
        *engine.engine_environment(spec),
    ]
    theirs: list[dict[str, Any]] = msgspec.to_builtins(spec.runtime.env)
    replaced = {variable["name"] for variable in theirs}
    return [variable for variable in own if variable["name"] not in replaced] + theirs


def _resources(spec: EngineCoreSpec) -> dict[str, Any]:
    limits = dict(spec.resources.limits)
    if spec.devices > 0:
        limits[spec.accelerator.name] = str(spec.devices)
    found = {"requests": dict(spec.resources.requests), "limits": limits}
    return {key: value for key, value in found.items() if value}


def _probes() -> dict[str, Any]:
    """Build the probes.

    The server judges its engine's progress itself, however long a model loads: the startup
    probe only waits for its HTTP port, liveness asks whether the server is sound.
    """
    health = {"path": HEALTH_PATH, "port": "http"}
    return {
        "startupProbe": {
            "httpGet": health,
            "periodSeconds": 1,
            "timeoutSeconds": 2,
            "failureThreshold": 300,
        },
        "livenessProbe": {
            "httpGet": health,
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "readinessProbe": {
            "httpGet": {"path": READY_PATH, "port": "http"},
            "periodSeconds": 1,
            "timeoutSeconds": 2,
            "failureThreshold": 2,
        },
    }


def _volumes(source: ModelSource | None) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {"name": labels.TMP_VOLUME, "emptyDir": {}},
        {"name": labels.RUN_VOLUME, "emptyDir": {}},
        {"name": labels.SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": SHM_SIZE}},
    ]
    if source is not None and source.host_path is not None:
        # With a type, the kubelet says what is missing; without, the path would be created.
        file = source.host_path.rstrip("/").lower().endswith(MODEL_FILE_SUFFIXES)
        path = {"path": source.host_path, "type": "File" if file else "Directory"}
        volumes.append({"name": labels.MODEL_VOLUME, "hostPath": path})
    elif source is not None and source.pvc is not None:
        claim = {"claimName": source.pvc.claim_name, "readOnly": True}
        volumes.append({"name": labels.MODEL_VOLUME, "persistentVolumeClaim": claim})
    return volumes


def _mounts(source: ModelSource | None) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": labels.TMP_VOLUME, "mountPath": "/tmp"},  # noqa: S108 - an emptyDir
        {"name": labels.RUN_VOLUME, "mountPath": RUN_PATH},
        {"name": labels.SHM_VOLUME, "mountPath": "/dev/shm"},  # noqa: S108 - an emptyDir
    ]
    if source is not None and source.host_path is not None:
        name = posixpath.basename(source.host_path.rstrip("/"))
        path = posixpath.join(MODELS_PATH, name)
        mounts.append({"name": labels.MODEL_VOLUME, "mountPath": path, "readOnly": True})
    elif source is not None:
        mounts.append({"name": labels.MODEL_VOLUME, "mountPath": MODELS_PATH, "readOnly": True})
    return mounts
