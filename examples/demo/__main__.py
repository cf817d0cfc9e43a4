"""`make demo` and `make demo-down`: from nothing to tokens, and back to nothing.

usage: PYTHONPATH=tests python examples/demo up|down    (make demo, make demo-down)

Without KUBECONFIG a development cluster is started on this machine (root, Debian, Go). With it,
that cluster is used; its nodes must be able to pull OPERATOR_IMAGE and ENGINE_IMAGE (default: the
chart's), must hold the checkpoint in MODEL_PATH (default /models/smollm2), and this machine must
reach the pods' addresses.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from steps import Steps
from tools import SYSTEM_NAMESPACE, AccessError, Tools, check_files

from devcluster import binaries, state
from devcluster.errors import DevclusterError
from devcluster.locations import Locations
from support.checkpoint import fetch_checkpoint
from support.images import build_images

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "manifests/samples/smollm2.yaml"
CHART = ROOT / "charts/enginecore"
RUN_NAME = "demo"
RELEASE = "enginecore"
NAMESPACE = "default"
CLUSTER = "smollm2"
AVAILABLE_SECONDS = 600
POD_COLUMNS = "custom-columns=:.metadata.name,:.status.phase,:.status.containerStatuses[0].ready"
CORE_COLUMNS = "custom-columns=:.metadata.name,:.status.phase"


@dataclass(frozen=True)
class Target:
    """The cluster the demo runs on.

    Attributes:
        kubeconfig: its kubeconfig file.
        operator_image: reference of the operator's image; empty: the chart's.
        engine_image: reference of the engine's image; empty: the chart's.
        model_path: directory on its nodes with the checkpoint.
        given: whether it is the user's.
    """

    kubeconfig: str
    operator_image: str
    engine_image: str
    model_path: str
    given: bool = False


def devcluster(*arguments: str) -> list[str]:
    """Return the command line of the development cluster."""
    return [sys.executable, "-m", "devcluster", *arguments]


def own_target(steps: Steps) -> Target:
    """Build what is missing and start the development cluster.

    Raises:
        DevclusterError, subprocess.CalledProcessError: a step failed.
    """
    locations = Locations.from_environment()
    with steps.step("Kubernetes: programs (built once, minutes the first time)"):
        binaries.build((*binaries.TIERS["node"], "helm"), locations.cache, steps.say)
    with steps.step("images"):
        images = build_images(("operator", "engine"), locations.images, steps.say)
    with steps.step("model: SmolLM2-135M-Instruct, 98 MB"):
        model = fetch_checkpoint().parent
        steps.say(str(model))
    with steps.step("Kubernetes: one node on this machine"):
        up = subprocess.run(
            devcluster("up", "--tier", "node", "--name", RUN_NAME),
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        kubeconfig = up.stdout.strip().splitlines()[-1]
        archives = [str(image.archive) for image in images.values()]
        subprocess.run(
            devcluster("load-image", "--name", RUN_NAME, *archives),
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return Target(
        kubeconfig=kubeconfig,
        operator_image=images["operator"].reference,
        engine_image=images["engine"].reference,
        model_path=str(model),
    )


def given_target(kubeconfig: str, environ: Mapping[str, str]) -> Target:
    """Describe the cluster that KUBECONFIG names."""
    return Target(
        kubeconfig=kubeconfig,
        operator_image=environ.get("OPERATOR_IMAGE", ""),
        engine_image=environ.get("ENGINE_IMAGE", ""),
        model_path=environ.get("MODEL_PATH", "/models/smollm2"),
        given=True,
    )


def image_values(key: str, image: str) -> list[str]:
    """Return helm's arguments that set an image: none for an empty reference."""
    if not image:
        return []
    repository, _, tag = image.rpartition(":")
    return [f"--set={key}.repository={repository}", f"--set={key}.tag={tag}"]


def sample_for(target: Target) -> str:
    """Return the sample with the checkpoint's directory on the node.

    The client runs on this machine: it is the own cluster's node, but no pod of a given one, so
    that no label would let it in.
    """
    tree: dict[str, Any] = yaml.safe_load(SAMPLE.read_text())
    tree["spec"]["model"]["source"]["hostPath"] = target.model_path
    if target.given:
        tree["spec"]["transport"] = {"networkPolicy": "None"}
    return yaml.safe_dump(tree, sort_keys=False)


def running_images(tools: Tools) -> set[str]:
    """Return the images of the engines that run already."""
    return set(
        tools.output(
            "kubectl", "get", "pods", "-n", NAMESPACE,
            "-l", f"enginecore.dev/cluster={CLUSTER},enginecore.dev/component=engine",
            "-o", "jsonpath={.items[*].spec.containers[?(@.name=='engine')].image}",
        ).split()
    )  # fmt: skip


def up(steps: Steps) -> None:
    """Bring the demo up and show it."""
    given = os.environ.get("KUBECONFIG")
    if given:
        check_files(given)
    target = given_target(given, os.environ) if given else own_target(steps)
    tools = Tools(target.kubeconfig, steps)
    with steps.step("Kubernetes: its API server answers"):
        tools.check_access()
    client = f"{sys.executable} examples/demo/client.py"
    with steps.step("operator: helm install"):
        tools.run_watching(
            "helm", "upgrade", "--install", RELEASE, str(CHART.relative_to(ROOT)),
            "--namespace", SYSTEM_NAMESPACE, "--create-namespace", "--wait", "--timeout=3m",
            *image_values("operator.image", target.operator_image),
            *image_values("engine.image", target.engine_image),
            "--hide-notes",
            watch=("pods", "--namespace", SYSTEM_NAMESPACE, "-o", POD_COLUMNS),
        )  # fmt: skip
    with steps.step("engines: apply the EngineCluster, wait until it is Available"):
        print(f"   {SAMPLE.relative_to(ROOT)}, checkpoint in {target.model_path}")
        if target.engine_image and running_images(tools) - {target.engine_image}:
            # Running engines keep their image; the demo is to show the one just built.
            tools.run("kubectl", "delete", "-n", NAMESPACE, f"enginecluster/{CLUSTER}")
        tools.run("kubectl", "apply", "-n", NAMESPACE, "-f", "-", stdin=sample_for(target))
        tools.run_watching(
            "kubectl", "wait", "-n", NAMESPACE, f"enginecluster/{CLUSTER}",
            "--for=condition=Available", f"--timeout={AVAILABLE_SECONDS}s",
            watch=("enginecores", "--namespace", NAMESPACE, "-o", CORE_COLUMNS),
        )  # fmt: skip
    with steps.step("client: 8 prompts at once over all engines"):
        tools.run(
            *client.split(), "--cluster", CLUSTER,
            "--namespace", NAMESPACE, "--checkpoint", str(fetch_checkpoint()),
        )  # fmt: skip
    with steps.step("what runs"):
        tools.run("kubectl", "get", "-n", NAMESPACE, "engineclusters,enginecores,pods")
    print(f"""
Up after {steps.elapsed()}, and it stays up. To use it:
   export KUBECONFIG={target.kubeconfig} PATH={tools.path}:$PATH
   kubectl get engineclusters,enginecores,pods
   kubectl scale enginecluster {CLUSTER} --replicas=3
   kubectl delete pod {CLUSTER}-0-1        # the operator replaces it; clients that follow go on
   {client} --prompt "Tell me a story."
To connect an application (docs/client.md): a pod mounts secret/{CLUSTER}-client; here, this is it:
   kubectl get secret {CLUSTER}-client -o jsonpath='{{.data.secret-key}}' | base64 -d > client-key
   export ENGINECORE_CLIENT_KEY_FILE=$PWD/client-key
To end it:
   make demo-down                          # removes everything""")


def down(steps: Steps) -> None:
    """Remove what `up` made."""
    given = os.environ.get("KUBECONFIG")
    if not given:
        with steps.step("taking the development cluster down"):
            subprocess.run(devcluster("down", "--name", RUN_NAME), check=True)
            others = state.runs(Locations.from_environment())
            if others:
                steps.say(
                    f"the demo is gone; a cluster that is not the demo's, {others[0].name!r}, is "
                    "there too, so the unreachable routes that all of them share stay"
                )
            else:
                subprocess.run(devcluster("reclaim", "--routes"), check=True)
        return
    check_files(given)
    tools = Tools(given, steps)
    with steps.step("removing the demo from the cluster of KUBECONFIG"):
        tools.run("kubectl", "delete", "-n", NAMESPACE, "--ignore-not-found", "-f", str(SAMPLE))
        tools.run("helm", "uninstall", RELEASE, "--namespace", SYSTEM_NAMESPACE,
                  "--ignore-not-found", "--wait")  # fmt: skip
        tools.run("kubectl", "delete", "--ignore-not-found", "-f", "manifests/crds")
        tools.run("kubectl", "delete", "namespace", SYSTEM_NAMESPACE, "--ignore-not-found")


def main() -> int:
    """Run one verb; returns the exit status."""
    verbs = {"up": up, "down": down}
    if len(sys.argv) != 2 or sys.argv[1] not in verbs:
        sys.stderr.write(__doc__ or "")
        return 2
    steps = Steps()
    try:
        verbs[sys.argv[1]](steps)
    except AccessError as error:
        sys.stderr.write(f"\n{error}\n")
        return 1
    except DevclusterError as error:
        sys.stderr.write(f"\nfailed in step {steps.title!r}: {error}\n")
        return 1
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"\nfailed in step {steps.title!r} (exit code {error.returncode})\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
