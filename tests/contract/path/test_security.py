"""Clients of every kind with CURVE: keys given, missing, refused, wrong, and changed under load."""

import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from enginecore_client import (
    AddressError,
    AuthenticationError,
    DPLBAsyncMPClient,
    EngineNotReadyError,
    NotPermittedError,
)
from enginecore_client.testing.deployments import CLIENT_CLASSES
from enginecore_client.testing.faces import AsyncFace
from enginecore_curve.keys import KeyPair, new_key_pair
from support.coordination import coordinator_process
from support.eventually import eventually
from support.faces import Face, params
from support.keys import MountedKeys, PodKeys, write_secret
from support.pod import Pod, client_addresses

MakeFace = Callable[..., Face]
MakePod = Callable[..., Pod]

KEY_FILE = "ENGINECORE_CLIENT_KEY_FILE"
SOON = 20.0
"""Far below the patience of a client that nothing tells what is wrong (`ready_timeout`, 600 s)."""


@pytest.fixture
def keys(tmp_path: Path) -> PodKeys:
    return PodKeys(tmp_path)


@pytest.fixture
def pod(make_pod: MakePod, keys: PodKeys) -> Pod:
    return make_pod("--tokens", "3000", "--token-seconds", "0.002", transport=keys.transport)


@pytest.fixture
def key_file(tmp_path: Path) -> Callable[[KeyPair], str]:
    """Return a function that writes a client's secret key and returns the file's path."""
    return lambda pair: str(write_secret(pair, tmp_path / "client-key"))


def secured(pods: list[Pod], server_key: str, **more: Any) -> dict[str, Any]:
    """Return the addresses of pods with CURVE."""
    return client_addresses(pods) | {"server_key": server_key} | more


def tokens(face: Face, count: int) -> list[int]:
    """Return the tokens of one request."""
    return [token for output in face.generate([1], params(count)) for token in output.new_token_ids]


def test_a_listed_key_is_served_and_held_to_its_role(
    pod: Pod, keys: PodKeys, make_face: MakeFace, key_file: Callable[[KeyPair], str]
) -> None:
    face = make_face(secured([pod], keys.server.public), client_key=key_file(keys.infer))
    assert len(tokens(face, 20)) == 20
    with pytest.raises(NotPermittedError, match="needs the admin role"):
        face.control("reset_prefix_cache")
    admin = make_face(secured([pod], [keys.server.public]), client_key=key_file(keys.admin))
    assert admin.control("reset_prefix_cache") is True


def test_the_key_may_come_from_the_environment(
    pod: Pod,
    keys: PodKeys,
    make_face: MakeFace,
    key_file: Callable[[KeyPair], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(KEY_FILE, key_file(keys.infer))
    assert len(tokens(make_face(secured([pod], keys.server.public)), 5)) == 5


def test_two_engines_of_which_one_has_no_curve(
    make_pod: MakePod,
    pod: Pod,
    keys: PodKeys,
    make_face: MakeFace,
    key_file: Callable[[KeyPair], str],
) -> None:
    plain = make_pod(rank=1)
    addresses = secured([pod, plain], "") | {"server_key": [keys.server.public, ""]}
    face = make_face(addresses, client_key=key_file(keys.infer))
    for rank in (0, 1):
        assert len(list(face.generate([1], params(3), data_parallel_rank=rank))) >= 1


@pytest.mark.parametrize(
    ("server", "client", "text"),
    [
        ("its own", None, "has no key of its own; give the path .* client_key, or in " + KEY_FILE),
        ("its own", "unlisted", "refuses the public key .*have that key listed"),
        ("another", "infer", "the server_key of its address is not the key of the server there"),
        ("none", None, "speaks CURVE only: its address needs the server_key"),
    ],
)
def test_what_is_wrong_is_told_with_its_remedy(
    pod: Pod,
    keys: PodKeys,
    make_face: MakeFace,
    key_file: Callable[[KeyPair], str],
    server: str,
    client: str | None,
    text: str,
) -> None:
    unlisted = new_key_pair()
    pairs = {"unlisted": unlisted, "infer": keys.infer}
    own = {} if client is None else {"client_key": key_file(pairs[client])}
    public = {"its own": keys.server.public, "another": unlisted.public, "none": ""}[server]
    began = time.monotonic()
    with pytest.raises(AuthenticationError, match=text) as raised:
        make_face(secured([pod], public), **own)
    assert time.monotonic() - began < SOON
    assert pod.input_address in str(raised.value)
    assert not raised.value.retryable
    assert unlisted.secret not in str(raised.value)


def test_a_server_without_curve_is_told_from_one_with(
    make_pod: MakePod, keys: PodKeys, make_face: MakeFace, key_file: Callable[[KeyPair], str]
) -> None:
    plain = make_pod()
    with pytest.raises(AuthenticationError, match=r"does not speak CURVE: leave server_key out"):
        make_face(secured([plain], keys.server.public), client_key=key_file(keys.infer))


@pytest.mark.parametrize("make", list(CLIENT_CLASSES.values())[1:])
def test_a_key_that_cannot_be_read_is_an_error_at_once(
    make: Callable[..., Any], keys: PodKeys, tmp_path: Path
) -> None:
    addresses = {
        "input_address": "tcp://127.0.0.1:1",
        "output_address": "tcp://127.0.0.1:2",
        "server_key": keys.server.public,
    }
    with pytest.raises(AuthenticationError, match="cannot read the secret key in"):
        make(addresses, client_key=tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"server_key": "short"}, r"server_key\[0\] must be a public key, 40 characters of Z85"),
        ({"server_key": ["", ""]}, "server_key has 2 entries and input_address 1"),
        ({"server_key": 5}, "server_key must be a string or a list of strings"),
        ({"stats_server_key": "x" * 40}, "stats_server_key is given without stats_update_address"),
    ],
)
def test_wrong_server_keys_are_named(make_face: MakeFace, more: dict[str, Any], text: str) -> None:
    addresses = {"input_address": "tcp://127.0.0.1:1", "output_address": "tcp://127.0.0.1:2"}
    with pytest.raises(AddressError, match=text):
        make_face(addresses | more)


def test_keys_change_under_load_and_no_request_is_lost(
    pod: Pod, keys: PodKeys, make_face: MakeFace, key_file: Callable[[KeyPair], str]
) -> None:
    """Both keys are listed for a while, clients come with the new one, the old one goes."""
    new = new_key_pair()
    path = key_file(keys.infer)
    first = make_face(secured([pod], keys.server.public), client_key=path)
    lengths: list[int] = []
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            lengths.append(len(tokens(first, 50)))

    worker = threading.Thread(target=load)
    worker.start()
    try:
        eventually(lambda: lengths, "under load")
        keys.clients.write(infer=[keys.infer, new], admin=[keys.admin])
        second = make_face(secured([pod], keys.server.public), client_key=key_file(new))
        assert len(tokens(second, 50)) == 50
        before = len(lengths)
        eventually(lambda: len(lengths) > before, "still under load")
    finally:
        stop.set()
        worker.join()
    assert set(lengths) == {50}
    first.close_client()
    keys.clients.write(infer=[new], admin=[keys.admin])
    assert len(tokens(second, 200)) == 200


def test_a_key_that_is_taken_away_ends_its_streams_with_the_reason(
    pod: Pod, keys: PodKeys, make_face: MakeFace, key_file: Callable[[KeyPair], str]
) -> None:
    face = make_face(secured([pod], keys.server.public), client_key=key_file(keys.infer))
    stream = face.generate([1], params(2900))
    next(stream)
    keys.clients.write(admin=[keys.admin])
    with pytest.raises(AuthenticationError, match="refuses the public key"):
        list(stream)


def answered(face: Face) -> bool:
    """Say whether a client that may still be on its way in gets what it asks for."""
    try:
        return len(tokens(face, 5)) == 5
    except (AuthenticationError, EngineNotReadyError):
        return False


def test_a_client_whose_key_is_listed_later_gets_in(
    pod: Pod, keys: PodKeys, make_face: MakeFace, key_file: Callable[[KeyPair], str]
) -> None:
    """A running client tries again, and reads its key again."""
    other = new_key_pair()
    path = key_file(keys.infer)
    face = make_face(secured([pod], keys.server.public), client_key=path)
    keys.clients.write(infer=[other], admin=[keys.admin])
    eventually(lambda: pod.status().clients == 0, "cut off")
    key_file(other)
    eventually(lambda: answered(face), "in again")


def test_a_new_server_key_is_followed_in_the_file(
    make_pod: MakePod,
    keys: PodKeys,
    make_face: MakeFace,
    key_file: Callable[[KeyPair], str],
    tmp_path: Path,
) -> None:
    """A pod is replaced by one with another key: clients take the key with the address."""
    file = tmp_path / "addresses.json"
    first = make_pod(transport=keys.transport)
    file.write_text(json.dumps(secured([first], keys.server.public)))
    face = make_face(str(file), client_key=key_file(keys.infer))
    assert len(tokens(face, 3)) == 3
    renewed = new_key_pair()
    secret = write_secret(renewed, tmp_path / "renewed")
    transport = msgspec.structs.replace(keys.transport, secret_key_file=str(secret))
    second = make_pod(transport=transport)
    file.write_text(json.dumps(secured([second], renewed.public)))
    eventually(lambda: second.status().clients == 1, "moved")
    assert len(tokens(face, 3)) == 3


def test_loads_come_from_a_coordinator_with_a_key(
    make_pod: MakePod,
    keys: PodKeys,
    make_face: MakeFace,
    key_file: Callable[[KeyPair], str],
    tmp_path: Path,
) -> None:
    own = new_key_pair()
    listed = MountedKeys(tmp_path / "readers", infer=[keys.infer], server=[keys.server])
    secret = write_secret(own, tmp_path / "coordinator-key")
    options = ["--secret-key-file", str(secret), "--clients-directory", str(listed.directory)]
    with coordinator_process(options=options) as coordinator:
        pod = make_pod(
            transport=keys.transport,
            coordinator_address=coordinator.report_address,
            coordinator_key=own.public,
        )
        face = make_face(
            secured(
                [pod],
                keys.server.public,
                stats_update_address=coordinator.publish_address,
                stats_server_key=own.public,
            ),
            client_key=key_file(keys.infer),
        )
        assert len(tokens(face, 3)) == 3
        subscribed = re.compile(r"coordinator_subscriptions_total [1-9]")
        eventually(lambda: subscribed.search(coordinator.get("/metrics")), "subscribed")


def test_the_balancing_client_takes_keys_too(
    pod: Pod, keys: PodKeys, key_file: Callable[[KeyPair], str]
) -> None:
    face = AsyncFace(
        secured([pod], keys.server.public),
        DPLBAsyncMPClient,
        lockstep=False,
        client_key=key_file(keys.infer),
    )
    try:
        assert len(tokens(face, 3)) == 3
    finally:
        face.close()
