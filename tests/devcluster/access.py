"""Who may talk to the API server: bearer tokens and kubeconfig files."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class User:
    """A user of the static token file.

    Attributes:
        name: user name RBAC sees.
        token: its bearer token.
        groups: groups it is in.
    """

    name: str
    token: str
    groups: tuple[str, ...] = ()


def create_users(node: str, new_token: Callable[[], str]) -> dict[str, User]:
    """Makes one user per component; RBAC's built-in roles know their names.

    Args:
        node: name of the node whose kubelet connects.
        new_token: source of unguessable tokens.

    Returns:
        Component → its user.
    """
    names: dict[str, tuple[str, tuple[str, ...]]] = {
        "admin": ("devcluster-admin", ("system:masters",)),
        "kube-controller-manager": ("system:kube-controller-manager", ()),
        "kube-scheduler": ("system:kube-scheduler", ()),
        "kubelet": (f"system:node:{node}", ("system:nodes",)),
        "kube-proxy": ("system:kube-proxy", ()),
        "coredns": ("devcluster:coredns", ()),
        "kube-router": ("devcluster:kube-router", ()),
        "kwok": ("devcluster:kwok", ("system:masters",)),
    }
    return {
        component: User(name, new_token(), groups) for component, (name, groups) in names.items()
    }


def token_file(users: dict[str, User]) -> str:
    """Renders the CSV file of ``--token-auth-file``."""
    lines = []
    for user in users.values():
        groups = f',"{",".join(user.groups)}"' if user.groups else ""
        lines.append(f"{user.token},{user.name},{user.name}{groups}\n")
    return "".join(lines)


def kubeconfig(cluster: str, server: str, authority: bytes, user: User) -> str:
    """Renders a kubeconfig file (as JSON, which is YAML too).

    Args:
        cluster: name of cluster and context.
        server: URL of the API server.
        authority: PEM of the authority that signed its certificate.
        user: who connects.
    """
    tree = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": cluster,
        "clusters": [
            {
                "name": cluster,
                "cluster": {
                    "server": server,
                    "certificate-authority-data": base64.b64encode(authority).decode(),
                },
            }
        ],
        "users": [{"name": user.name, "user": {"token": user.token}}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user.name}}],
    }
    return json.dumps(tree, indent=1) + "\n"


def new_token() -> str:
    """Returns 128 random bits in hexadecimal digits."""
    return os.urandom(16).hex()
