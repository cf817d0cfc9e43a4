"""A real vLLM in pods of a node cluster, as type vllm runs it in vLLM's own images.

No such image can be had here. Debian's Python 3.11 stands for it, with vLLM's packages of this
machine mounted from the node's disk and a program `vllm` from a ConfigMap.
"""

from pathlib import Path
from typing import Any

from support.installation import model_source
from support.vllm_environment import RUN_VARIABLES

PACKAGES_PATH = "/opt/vllm/packages"
PROGRAM_PATH = "/opt/vllm/bin"
PROGRAM = '#!/bin/sh\nexec python3 -m vllm.entrypoints.cli.main "$@"\n'
PROGRAM_NAME = "vllm-program"

OPTIONS = (
    "--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "16",
    "--kv-cache-memory-bytes", str(256 << 20),
)  # fmt: skip
VARIABLES = {
    **{name: value for name, value in RUN_VARIABLES.items() if name != "VLLM_CPU_KVCACHE_SPACE"},
    "OMP_NUM_THREADS": "1",
    "PATH": f"{PROGRAM_PATH}:/usr/local/bin:/usr/bin:/bin",
    "PYTHONPATH": PACKAGES_PATH,
    "TORCH_COMPILE_DISABLE": "1",
}
"""The cache is as large as OPTIONS say. With several workers vLLM compiles a function even where
--enforce-eager is set, and this image, other than vLLM's, has no compiler."""

RESOURCES = {"requests": {"cpu": "200m", "memory": "1536Mi"}, "limits": {"memory": "8Gi"}}


def program_map() -> dict[str, Any]:
    """Return the ConfigMap that holds the program `vllm`."""
    meta = {"name": PROGRAM_NAME}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"vllm": PROGRAM}}


def vllm_spec(python: Path, model: Path, image: str, *options: str) -> dict[str, Any]:
    """Return the spec of engines of type vllm.

    Args:
        python: of vLLM's environment on the node.
        model: what to load, on the node.
        image: what stands for vLLM's.
        options: of vLLM; an option given twice counts as it is given last.
    """
    (packages,) = python.parents[1].glob("lib/python3*/site-packages")
    mounts = {"packages": PACKAGES_PATH, "program": PROGRAM_PATH}
    volumes: dict[str, dict[str, Any]] = {
        "packages": {"hostPath": {"path": str(packages), "type": "Directory"}},
        "program": {"configMap": {"name": PROGRAM_NAME, "defaultMode": 0o555}},
    }
    return {
        "model": model_source(model),
        "runtime": {
            "type": "vllm",
            "image": image,
            "args": [*OPTIONS, *options],
            "env": [{"name": name, "value": value} for name, value in VARIABLES.items()],
        },
        "accelerator": {"count": 0},
        "resources": RESOURCES,
        "podTemplate": {
            "spec": {
                "volumes": [{"name": name, **source} for name, source in volumes.items()],
                "containers": [
                    {
                        "name": "engine",
                        "volumeMounts": [
                            {"name": name, "mountPath": path, "readOnly": True}
                            for name, path in mounts.items()
                        ],
                    }
                ],
            }
        },
    }
