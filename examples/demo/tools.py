"""The programs the demo calls, shown before they run."""

import contextlib
import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from steps import Steps

from devcluster import binaries
from devcluster.locations import Locations

SYSTEM_NAMESPACE = "enginecore-system"
OPERATOR = "deployment/enginecore-operator"
WATCH_SECONDS = 2.0
DIAGNOSIS_LINES = 12
DIAGNOSIS_WIDTH = 300
ANSWER = "15s"


class AccessError(Exception):
    """The cluster of KUBECONFIG cannot be used; the text says why."""


def check_files(kubeconfig: str) -> None:
    """Make sure that KUBECONFIG, a list of files as kubectl takes it, names one that is there.

    Raises:
        AccessError: it does not.
    """
    files = [name for name in kubeconfig.split(os.pathsep) if name]
    if not any(Path(name).is_file() for name in files):
        raise AccessError(
            f"KUBECONFIG={kubeconfig}: there is no such file; name the kubeconfig of your cluster, "
            "or unset KUBECONFIG for a development cluster on this machine"
        )


class Tools:
    """kubectl and helm on the demo's cluster; commands are shown before they run.

    Attributes:
        path: the directories of kubectl and helm, as PATH takes them.
    """

    def __init__(self, kubeconfig: str, steps: Steps) -> None:
        cache = Locations.from_environment().cache
        programs = binaries.build(["kubectl", "helm"], cache, steps.say)
        self._programs = {name: str(path) for name, path in programs.items()}
        self.path = ":".join(dict.fromkeys(str(path.parent) for path in programs.values()))
        self._steps = steps
        self._env = os.environ | {
            "KUBECONFIG": kubeconfig,
            "PATH": f"{self.path}:{os.environ['PATH']}",
        }

    def check_access(self) -> None:
        """Make sure that the API server answers, before anything is changed.

        Raises:
            AccessError: it does not; the text says why.
        """
        done = subprocess.run(
            self._resolve(["kubectl", "get", "--raw", "/version", f"--request-timeout={ANSWER}"]),
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            *_, last = done.stderr.strip().splitlines() or ["no output"]
            raise AccessError(f"the API server of KUBECONFIG does not answer: {last}")

    def run(self, *command: str, stdin: str | None = None) -> None:
        """Run a command and let its output be seen.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        self._show(command)
        subprocess.run(self._resolve(command), env=self._env, input=stdin, text=True, check=True)

    def output(self, *command: str) -> str:
        """Run a command quietly and return what it prints.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        return subprocess.run(
            self._resolve(command), env=self._env, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    def run_watching(self, *command: str, watch: Sequence[str]) -> None:
        """Run a slow command; meanwhile report what `kubectl get` says of the objects in `watch`.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        self._show(command)
        last = ""
        with subprocess.Popen(self._resolve(command), env=self._env) as process:
            try:
                while process.poll() is None:
                    look = self._look(watch)
                    if look != last:
                        self._steps.say(look)
                    last = look
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(WATCH_SECONDS)
            finally:
                process.terminate()
        if process.returncode != 0:
            self._diagnose()
            raise subprocess.CalledProcessError(process.returncode, command)

    def _show(self, command: Sequence[str]) -> None:
        print(f"   $ {shlex.join(command)}", flush=True)

    def _resolve(self, command: Sequence[str]) -> list[str]:
        return [self._programs.get(command[0], command[0]), *command[1:]]

    def _look(self, watch: Sequence[str]) -> str:
        done = subprocess.run(
            self._resolve(["kubectl", "get", "--no-headers", *watch]),
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
        )
        return " · ".join(" ".join(line.split()) for line in done.stdout.splitlines()) or "nothing"

    def _diagnose(self) -> None:
        for command in (
            ("kubectl", "get", "pods", "--all-namespaces"),
            ("kubectl", "events", "--all-namespaces", "--types=Warning"),
            ("kubectl", "logs", "--tail=10", "--namespace", SYSTEM_NAMESPACE, OPERATOR),
        ):
            self._show(command)
            done = subprocess.run(
                self._resolve(command), env=self._env, capture_output=True, text=True, check=False
            )
            for line in (done.stdout + done.stderr).splitlines()[-DIAGNOSIS_LINES:]:
                print(f"   {line[:DIAGNOSIS_WIDTH]}")
