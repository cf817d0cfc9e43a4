"""Users, tokens and kubeconfig files."""

import base64
import csv
import io
import itertools
import json

import pytest

from devcluster import access


@pytest.fixture
def users() -> dict[str, access.User]:
    counter = itertools.count()
    return access.create_users("n1", lambda: f"token-{next(counter)}")


def test_every_component_has_a_token_of_its_own(users: dict[str, access.User]) -> None:
    assert len({user.token for user in users.values()}) == len(users)


def test_kubelet_is_its_node(users: dict[str, access.User]) -> None:
    assert users["kubelet"].name == "system:node:n1"
    assert users["kubelet"].groups == ("system:nodes",)


@pytest.mark.parametrize("component", ["kube-scheduler", "kube-proxy", "kubelet", "coredns"])
def test_components_are_no_admins(users: dict[str, access.User], component: str) -> None:
    assert "system:masters" not in users[component].groups


def test_token_file_is_the_csv_the_server_reads(users: dict[str, access.User]) -> None:
    rows = list(csv.reader(io.StringIO(access.token_file(users))))
    assert rows[0] == ["token-0", "devcluster-admin", "devcluster-admin", "system:masters"]
    assert [len(row) for row in rows] == [4 if user.groups else 3 for user in users.values()]


def test_kubeconfig_leads_to_the_server(users: dict[str, access.User]) -> None:
    tree = json.loads(access.kubeconfig("run", "https://h:1", b"PEM", users["admin"]))
    context = tree["contexts"][0]
    assert tree["current-context"] == context["name"] == "run"
    assert context["context"] == {"cluster": "run", "user": "devcluster-admin"}
    cluster = tree["clusters"][0]["cluster"]
    assert cluster["server"] == "https://h:1"
    assert base64.b64decode(cluster["certificate-authority-data"]) == b"PEM"
    assert tree["users"] == [{"name": "devcluster-admin", "user": {"token": "token-0"}}]


def test_tokens_are_long_and_new() -> None:
    tokens = {access.new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert {len(token) for token in tokens} == {32}
