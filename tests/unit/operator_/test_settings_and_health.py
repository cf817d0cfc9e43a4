"""Settings from the environment; signs of life."""

import pytest

from enginecore_operator.health import Health
from enginecore_operator.kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    KubeError,
    OverloadedError,
    RefusedError,
    TerminatingError,
    error_from_response,
)
from enginecore_operator.kube.events import NOTE_LENGTH, shorten
from enginecore_operator.settings import Settings, SettingsError, read_settings


def read(**variables: str) -> Settings:
    environment = {f"ENGINECORE_OPERATOR_{k}": v for k, v in variables.items()}
    return read_settings(environment | {"PATH": "/bin"}, identity="pod-1", namespace="sys")


def test_defaults() -> None:
    settings = read()
    assert (settings.identity, settings.namespace) == ("pod-1", "sys")
    assert settings.served_namespaces == ()


def test_values() -> None:
    settings = read(NAMESPACES="a, b", HTTP_PORT="9", IDENTITY="me", TORCH_IMAGE="t:1")
    assert settings.served_namespaces == ("a", "b")
    assert settings.http_port == 9
    assert settings.identity == "me"
    assert settings.rendering.torch_image == "t:1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HTTP_PORT", "70000"),
        ("HTTP_PORT", "x"),
        ("CONCURRENCY", "0"),
        ("IMAGE_PULL_POLICY", "Sometimes"),
        ("LEASE_NAME", ""),
        ("LOG_LEVEL", "loud"),
    ],
)
def test_bad_values_name_the_variable(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"ENGINECORE_OPERATOR_{name}"):
        read(**{name: value})


def test_unknown_variables_are_refused() -> None:
    with pytest.raises(SettingsError, match="htp_port"):
        read(HTP_PORT="1")


def test_health() -> None:
    now = 0.0
    health = Health(lambda: now, resync_seconds=100)
    now = 30.0
    assert health.problems() == []
    now = 31.0
    assert health.problems() == ["the API server last served the Lease 31 s ago"]
    health.lease_served()
    assert health.problems() == []
    now = 361.0
    health.lease_served()
    assert health.problems() == ["everything was last listed 361 s ago"]
    health.listed()
    assert health.problems() == []
    health.resynced(["Pod", "Node"])
    assert health.problems() == ["the watch is dead: Pod, Node"]
    health.resynced([])
    assert health.problems() == []


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (409, b'{"reason": "AlreadyExists"}', AlreadyExistsError),
        (409, b'{"reason": "Conflict"}', ConflictError),
        (422, b'{"reason": "Invalid"}', RefusedError),
        (403, b'{"reason": "Forbidden", "message": "exceeded quota"}', RefusedError),
        (
            403,
            b'{"details": {"causes": [{"reason": "NamespaceTerminating"}]}}',
            TerminatingError,
        ),
        (429, b"{}", OverloadedError),
        (503, b"<html>", OverloadedError),
        (418, b"", ApiError),
    ],
)
def test_errors(status: int, body: bytes, kind: type[KubeError]) -> None:
    assert type(error_from_response(status, body)) is kind


def test_long_notes_keep_their_end() -> None:
    note = "Pod failed: " + "é" * 2000 + " the end"
    short = shorten(note)
    assert len(short.encode()) <= NOTE_LENGTH
    assert short.startswith("Pod failed: ")
    assert short.endswith(" the end")
    assert shorten("brief") == "brief"
