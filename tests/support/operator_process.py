"""The operator as a process against a dev cluster, with the rights of its service account only."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from devcluster.handle import ClusterHandle
from enginecore_operator.api.rbac import CLUSTER_RULES, LEASE_RULES
from support.eventually import eventually

ROOT = Path(__file__).resolve().parents[2]
CRDS = ROOT / "manifests" / "crds"
HTTP = re.compile(r"http on \[\('127\.0\.0\.1', (\d+)\)\]")


class Kubectl:
    """kubectl in one namespace, JSON in and out."""

    def __init__(self, cluster: ClusterHandle, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def run(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl; return what it printed, errors after output."""
        done = self.cluster.kubectl(
            "--namespace", self.namespace, *arguments, stdin=stdin, check=check
        )
        return done.stdout + done.stderr

    def apply(self, *documents: dict[str, Any]) -> None:
        """Apply objects, client-side as users do."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        self.run("apply", "-f", "-", stdin=json.dumps(items))

    def refused(self, document: dict[str, Any]) -> str:
        """Return why the API server refuses an object; empty if it takes it."""
        done = self.cluster.kubectl(
            *("--namespace", self.namespace, "create", "--dry-run=server", "-f", "-"),
            stdin=json.dumps(document),
            check=False,
        )
        return done.stderr if done.returncode else ""

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return one object. Raises DevclusterError."""
        document: dict[str, Any] = json.loads(self.run("get", kind, name, "-o", "json"))
        return document

    def find_all(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """Return the objects of a kind."""
        options = ["--selector", selector] if selector else []
        items: list[dict[str, Any]] = json.loads(
            self.run("get", kind, *options, "-o", "json", "--ignore-not-found") or '{"items": []}'
        ).get("items", [])
        return items

    def patch(self, kind: str, name: str, patch: dict[str, Any], subresource: str = "") -> None:
        """Merge a patch into an object."""
        options = [f"--subresource={subresource}"] if subresource else []
        self.run("patch", kind, name, "--type=merge", "-p", json.dumps(patch), *options)

    def condition(self, kind: str, name: str, condition: str) -> tuple[str, str]:
        """Return status and reason of a condition; empty words while there is none."""
        conditions = self.get(kind, name).get("status", {}).get("conditions", [])
        found: dict[str, str] = next((c for c in conditions if c["type"] == condition), {})
        return found.get("status", ""), found.get("reason", "")

    def events(self, reason: str) -> list[str]:
        """Return the notes of the operator's Events of a reason."""
        found = self.find_all("events.events.k8s.io")
        return [e.get("note", "") for e in found if e.get("reason") == reason]


def fail_pod(kubectl: Kubectl, name: str, log: str) -> None:
    """Let the engine of a pod exit 1, as a kubelet would tell it."""
    end = {"exitCode": 1, "reason": "Error", "message": log}
    container = {
        "name": "engine",
        "image": "x",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": end},
    }
    status = {"phase": "Failed", "containerStatuses": [container]}
    kubectl.patch("pod", name, {"status": status}, subresource="status")


class OperatorProcess:
    """One operator process."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def text(self) -> str:
        """Its log so far."""
        return self.log.read_text(errors="replace")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal and wait for the end; return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(20)

    def get(self, path: str) -> str:
        """Read one of its HTTP endpoints."""
        said = eventually(lambda: HTTP.search(self.text), "operator listens")
        assert said is not None
        port = said[1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            text: str = answer.read().decode()
            return text


def grant(kubectl: Kubectl, directory: Path) -> Path:
    """Give the namespace's service account the operator's rights; return its kubeconfig."""
    name, namespace = "enginecore-operator", kubectl.namespace
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    group = "rbac.authorization.k8s.io"
    documents: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    ]
    for scope, title, rules in (
        ("Cluster", f"{name}-{namespace}", CLUSTER_RULES),
        ("", f"{name}-election", LEASE_RULES),
    ):
        meta = {"name": title}
        role = {"apiGroup": group, "kind": f"{scope}Role", "name": title}
        documents += [
            {"apiVersion": f"{group}/v1", "kind": f"{scope}Role", "metadata": meta, "rules": rules},
            {
                "apiVersion": f"{group}/v1",
                "kind": f"{scope}RoleBinding",
                "metadata": meta,
                "roleRef": role,
                "subjects": [subject],
            },
        ]
    kubectl.apply(*documents)
    return account_kubeconfig(kubectl, name, directory)


def account_kubeconfig(kubectl: Kubectl, name: str, directory: Path) -> Path:
    """Write a kubeconfig for a service account of the namespace; return its path."""
    token = kubectl.run("create", "token", name, "--duration=1h").strip()
    view = json.loads(kubectl.run("config", "view", "--raw", "--flatten", "-o", "json"))
    view["users"] = [{"name": user["name"], "user": {"token": token}} for user in view["users"]]
    path = directory / "operator.kubeconfig"
    path.write_text(json.dumps(view))
    path.chmod(0o600)
    return path


class OperatorRunner:
    """Starts operator processes for one namespace and ends them."""

    def __init__(self, kubectl: Kubectl, directory: Path, kubeconfig: Path) -> None:
        self._kubectl = kubectl
        self._directory = directory
        self._kubeconfig = kubeconfig
        self._started: list[OperatorProcess] = []

    def start(self, **settings: str) -> OperatorProcess:
        """Start one more process."""
        number = len(self._started)
        values = {
            "NAMESPACE": self._kubectl.namespace,
            "NAMESPACES": self._kubectl.namespace,
            "IDENTITY": f"operator-{number}",
            "HTTP_HOST": "127.0.0.1",
            "HTTP_PORT": "0",
            **settings,
        }
        environment = os.environ | {f"ENGINECORE_OPERATOR_{k}": v for k, v in values.items()}
        environment["KUBECONFIG"] = str(self._kubeconfig)
        log = self._directory / f"operator-{number}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "enginecore_operator"],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._started.append(OperatorProcess(process, log))
        return self._started[-1]

    def stop(self) -> None:
        """End what still runs."""
        for operator in self._started:
            if operator.process.poll() is None:
                operator.kill(signal.SIGTERM)


@contextmanager
def operators(
    kubectl: Kubectl, directory: Path, kubeconfig: Path | None = None
) -> Iterator[OperatorRunner]:
    """Run operators within a block; print their logs if it fails.

    Without a kubeconfig they get a service account with the rights the operator states.
    """
    runner = OperatorRunner(kubectl, directory, kubeconfig or grant(kubectl, directory))
    try:
        yield runner
    finally:
        runner.stop()
        for log in sorted(directory.glob("operator-*.log")):
            sys.stdout.write(f"--- {log.name}\n{log.read_text(errors='replace')[-8000:]}\n")
