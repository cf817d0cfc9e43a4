"""etcd, kube-apiserver, and on request controller manager, scheduler and kwok."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from devcluster import access, pki
from devcluster.errors import DevclusterError
from devcluster.kubeapi import KubeApi, answers
from devcluster.locations import RunDirectory
from devcluster.network import NetworkPlan
from devcluster.ports import free_ports
from devcluster.processes import ProcessIdentity, kill, spawn, wait_until
from devcluster.state import RunRecord

_ETCD_SECONDS = 60.0
_APISERVER_SECONDS = 180.0
_CONTROLLER_SECONDS = 180.0
_PORT_ATTEMPTS = 3
_CLIENT_LIMITS = ("--kube-api-qps=500", "--kube-api-burst=1000")
KWOK_STAGES = Path(__file__).with_name("templates") / "kwok-stages.yaml"


@dataclass(frozen=True)
class Run:
    """What every component of one run is started with.

    Attributes:
        directory: the run's files.
        record: the run's record; gains each process that starts.
        programs: file name → path of each built program.
        plan: the run's addresses.
    """

    directory: RunDirectory
    record: RunRecord
    programs: Mapping[str, Path]
    plan: NetworkPlan

    def start(self, name: str, arguments: Sequence[str | Path], path: str = "") -> ProcessIdentity:
        """Starts one component and records it.

        Args:
            name: file name of its program.
            arguments: its command line.
            path: value of PATH, where it runs other programs.
        """
        environ = {"PATH": path or "/usr/bin:/bin", "HOME": str(self.directory.path)}
        identity = spawn(
            [self.programs[name], *arguments],
            log=self.directory.log(name),
            run=self.directory.path,
            environ=environ,
        )
        self.record.processes[name] = identity
        self.record.save(self.directory)
        return identity

    def needs(self, *names: str) -> dict[Path, ProcessIdentity]:
        """Returns log file → process of components that must stay alive."""
        return {self.directory.log(name): self.record.processes[name] for name in names}


@dataclass(frozen=True)
class ControlPlane:
    """A control plane that answers.

    Attributes:
        api: admin access to it.
        users: component → its user.
        keys: its certificates.
    """

    api: KubeApi
    users: Mapping[str, access.User]
    keys: pki.Pki

    def write_kubeconfigs(self, directory: RunDirectory) -> None:
        """Writes the admin's kubeconfig and one for each component."""
        authority = self.keys.authority.read_bytes()
        for component, user in self.users.items():
            path = directory.client_kubeconfig(component)
            if component == "admin":
                path = directory.kubeconfig
            path.parent.mkdir(exist_ok=True)
            path.touch(mode=0o600)
            path.write_text(access.kubeconfig(directory.name, self.api.server, authority, user))


def etcd_arguments(data: Path, client: str, peer: str) -> list[str]:
    """Renders etcd's command line: one member that never syncs to disk."""
    return [
        "--name=devcluster",
        f"--data-dir={data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=devcluster={peer}",
        # The data never outlives the run, so nothing is gained by waiting for the disk.
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def apiserver_arguments(
    run: RunDirectory, keys: pki.Pki, plan: NetworkPlan, *, etcd: str, port: int
) -> list[str]:
    """Renders kube-apiserver's command line."""
    reconciler = "lease" if plan.routable else "none"
    return [
        f"--etcd-servers={etcd}",
        f"--bind-address={plan.server_address}",
        f"--advertise-address={plan.server_address}",
        f"--secure-port={port}",
        # Service endpoints cannot hold a loopback address.
        f"--endpoint-reconciler-type={reconciler}",
        f"--tls-cert-file={keys.certificate('apiserver')}",
        f"--tls-private-key-file={keys.key('apiserver')}",
        f"--client-ca-file={keys.authority}",
        f"--kubelet-client-certificate={keys.certificate('kubelet-client')}",
        f"--kubelet-client-key={keys.key('kubelet-client')}",
        f"--service-account-key-file={keys.service_account_key}",
        f"--service-account-signing-key-file={keys.service_account_key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--token-auth-file={run.path / 'tokens.csv'}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--service-cluster-ip-range={plan.services}",
        "--allow-privileged=true",
        # Else logs and exec look the node's name up in DNS.
        "--kubelet-preferred-address-types=InternalIP,Hostname",
    ]


def start(run: Run, node: str) -> ControlPlane:
    """Brings up etcd and kube-apiserver.

    Args:
        run: the run they belong to.
        node: name of the node whose kubelet will connect.

    Raises:
        DevclusterError: one of them did not become ready.
    """
    directory = run.directory
    addresses = sorted({"127.0.0.1", run.plan.server_address, run.plan.first_service})
    names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    keys = pki.create(directory.pki, addresses, [*names, "kubernetes.default.svc.cluster.local"])
    users = access.create_users(node, access.new_token)
    tokens = directory.path / "tokens.csv"
    tokens.touch(mode=0o600)
    tokens.write_text(access.token_file(users))
    etcd = _start_etcd(run)
    for _ in range(_PORT_ATTEMPTS):
        (port,) = free_ports(1, run.plan.server_address)
        run.start(
            "kube-apiserver",
            apiserver_arguments(directory, keys, run.plan, etcd=etcd, port=port),
        )
        server = f"https://{run.plan.server_address}:{port}"
        api = KubeApi(server, keys.authority, users["admin"].token)
        if _became_ready(run, "kube-apiserver", api.ready, _APISERVER_SECONDS):
            run.record.server = server
            plane = ControlPlane(api, users, keys)
            plane.write_kubeconfigs(directory)
            return plane
    raise DevclusterError(f"kube-apiserver found its port taken {_PORT_ATTEMPTS} times")


def _start_etcd(run: Run) -> str:
    for _ in range(_PORT_ATTEMPTS):
        client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
        data = run.directory.path / "etcd"
        run.start("etcd", etcd_arguments(data, client, peer))
        if _became_ready(run, "etcd", partial(answers, f"{client}/readyz"), _ETCD_SECONDS):
            return client
    raise DevclusterError(f"etcd found its port taken {_PORT_ATTEMPTS} times")


def _became_ready(run: Run, name: str, ready: Callable[[], bool], seconds: float) -> bool:
    """Waits for a server; False where another process was faster to take its port."""
    log = run.directory.log(name)
    try:
        wait_until(ready, what=f"{name} is ready", seconds=seconds, needs=run.needs(name))
    except DevclusterError:
        if "address already in use" not in log.read_text(errors="replace"):
            raise
        kill([run.record.processes.pop(name)])
        log.unlink()
        return False
    return True


def start_controllers(run: Run, plane: ControlPlane) -> None:
    """Starts controller manager and scheduler, and waits until pods can be made.

    Raises:
        DevclusterError: the default service account did not appear.
    """
    run.start(
        "kube-controller-manager", controller_manager_arguments(run.directory, plane.keys, run.plan)
    )
    scheduler = run.directory.client_kubeconfig("kube-scheduler")
    run.start(
        "kube-scheduler",
        [f"--kubeconfig={scheduler}", "--leader-elect=false", "--secure-port=0", *_CLIENT_LIMITS],
    )
    wait_until(
        lambda: plane.api.get("/api/v1/namespaces/default/serviceaccounts/default") is not None,
        what="the default service account exists",
        seconds=_CONTROLLER_SECONDS,
        needs=run.needs("kube-apiserver", "kube-controller-manager", "kube-scheduler"),
    )


def controller_manager_arguments(run: RunDirectory, keys: pki.Pki, plan: NetworkPlan) -> list[str]:
    """Renders kube-controller-manager's command line."""
    arguments = [
        f"--kubeconfig={run.client_kubeconfig('kube-controller-manager')}",
        "--leader-elect=false",
        # Nobody asks its own endpoint, so it takes no port.
        "--secure-port=0",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={keys.service_account_key}",
        f"--root-ca-file={keys.authority}",
        *_CLIENT_LIMITS,
    ]
    if plan.routable:
        arguments += ["--allocate-node-cidrs", f"--cluster-cidr={plan.pods}"]
    return arguments


def start_kwok(run: Run) -> None:
    """Starts kwok, which plays kubelet for the nodes annotated as fake."""
    run.start(
        "kwok",
        [
            f"--kubeconfig={run.directory.client_kubeconfig('kwok')}",
            "--manage-all-nodes=false",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            f"--cidr={run.plan.kwok}",
            # Without leases the node controller takes the nodes for lost after 50 s.
            "--node-lease-duration-seconds=40",
            f"--config={KWOK_STAGES}",
        ],
    )
