"""The coordinator's sockets with CURVE: servers report, clients read, and nobody else does."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from enginecore_curve.keys import KeyPair, connect_curve, new_key_pair
from support.coordination import CoordinatorProcess, Subscriber, coordinator_process, load_message
from support.eventually import eventually
from support.keys import MountedKeys, PodKeys, write_secret
from support.pod import Pod, stub_config

SILENCE_MS = 500


@pytest.fixture
def keys(tmp_path: Path) -> PodKeys:
    return PodKeys(tmp_path)


@pytest.fixture
def own() -> KeyPair:
    return new_key_pair()


@pytest.fixture
def listed(tmp_path: Path, keys: PodKeys) -> MountedKeys:
    return MountedKeys(tmp_path / "coordinator-clients", infer=[keys.infer], server=[keys.server])


@pytest.fixture
def coordinator(tmp_path: Path, own: KeyPair, listed: MountedKeys) -> Iterator[CoordinatorProcess]:
    secret = write_secret(own, tmp_path / "coordinator-secret")
    options = ["--secret-key-file", str(secret), "--clients-directory", str(listed.directory)]
    with coordinator_process(options=options) as process:
        yield process


def test_a_servers_load_reaches_a_client(
    coordinator: CoordinatorProcess, own: KeyPair, keys: PodKeys
) -> None:
    config = stub_config(
        rank=1,
        transport=keys.transport,
        coordinator_address=coordinator.report_address,
        coordinator_key=own.public,
    )
    with Pod(config) as pod, zmq.Context() as context:
        pod.wait_ready()
        client = Subscriber(context, coordinator.publish_address, keys=(keys.infer, own.public))
        eventually(lambda: [[[0, 0, 0.0], [0, 0, 0.0]], 0, False] in client.read(), "published")
        client.socket.close(0)


@pytest.mark.parametrize("who", ["nobody", "no key", "a client", "another coordinator"])
def test_others_reports_do_not_count(
    coordinator: CoordinatorProcess, own: KeyPair, keys: PodKeys, who: str
) -> None:
    pairs = {
        "nobody": (new_key_pair(), own.public),
        "no key": None,
        "a client": (keys.infer, own.public),
        "another coordinator": (keys.server, new_key_pair().public),
    }
    with zmq.Context() as context, context.socket(zmq.PUSH) as engine:
        engine.linger = 0
        engine.set(zmq.IMMEDIATE, 1)
        pair = pairs[who]
        if pair is not None:
            connect_curve(engine, *pair)
        engine.connect(coordinator.report_address)
        assert not engine.poll(SILENCE_MS, zmq.POLLOUT)
        assert coordinator.ranks() == []


def test_who_is_refused_again_and_again_is_counted_and_fills_no_log(
    coordinator: CoordinatorProcess, own: KeyPair, keys: PodKeys
) -> None:
    """A key that may not report is tried by every one of many connections."""
    crowd = 50

    def counted() -> int:
        pattern = r'refused_connections_total\{purpose="reports"\} (\d+)'
        return sum(map(int, re.findall(pattern, coordinator.get("/metrics"))))

    with zmq.Context() as context, ExitStack() as stack:
        for _ in range(crowd):
            engine = stack.enter_context(context.socket(zmq.PUSH))
            engine.linger = 0
            connect_curve(engine, keys.infer, own.public)
            engine.connect(coordinator.report_address)
        eventually(lambda: counted() == crowd, "each is counted")
    log = coordinator.stop()
    assert log.count("may not connect for reports") == 1


@pytest.mark.parametrize("who", ["nobody", "no key", "a server"])
def test_others_get_nothing(
    coordinator: CoordinatorProcess, own: KeyPair, keys: PodKeys, who: str
) -> None:
    pairs = {
        "nobody": (new_key_pair(), own.public),
        "no key": None,
        "a server": (keys.server, own.public),
    }
    with zmq.Context() as context:
        client = Subscriber(context, coordinator.publish_address, keys=pairs[who])
        assert not client.socket.poll(SILENCE_MS)
        client.socket.close(0)
    assert re.search(r"coordinator_subscriptions_total 0\.0", coordinator.get("/metrics"))


def test_keys_change_while_it_runs(
    coordinator: CoordinatorProcess, own: KeyPair, keys: PodKeys, listed: MountedKeys
) -> None:
    later = new_key_pair()
    listed.write(infer=[later], server=[keys.server])
    with zmq.Context() as context, context.socket(zmq.PUSH) as engine:
        connect_curve(engine, keys.server, own.public)
        engine.connect(coordinator.report_address)
        client = Subscriber(context, coordinator.publish_address, keys=(later, own.public))
        engine.send(load_message(0, 3, 2, 0.5))
        eventually(lambda: [[[3, 2, 0.5]], 0, False] in client.read(), "published")

        def is_refused() -> bool:
            old = Subscriber(context, coordinator.publish_address, keys=(keys.infer, own.public))
            answered = old.socket.poll(SILENCE_MS)
            old.socket.close(0)
            return not answered

        eventually(is_refused, "the old key is off the list")
        client.socket.close(0)
        engine.linger = 0


def test_a_server_finds_a_coordinator_that_has_another_key(
    tmp_path: Path, keys: PodKeys, own: KeyPair, listed: MountedKeys
) -> None:
    """The file lists what the coordinator may have; each is tried until one is answered."""
    file = tmp_path / "coordinator"
    file.write_text(f"{new_key_pair().public} of before\n\n{own.public}\n")
    secret = write_secret(own, tmp_path / "coordinator-secret")
    options = ["--secret-key-file", str(secret), "--clients-directory", str(listed.directory)]
    with coordinator_process(options=options) as first:
        config = stub_config(
            transport=keys.transport,
            coordinator_address=first.report_address,
            coordinator_keys_file=str(file),
        )
        with Pod(config) as pod:
            pod.wait_ready()
            eventually(first.ranks, "the second key of the file is its own")
            first.stop()
            renewed = new_key_pair()
            write_secret(renewed, secret)
            file.write_text(renewed.public)
            with coordinator_process(first.report_address, options=options) as second:
                eventually(second.ranks, "the file was read again")


def test_a_missing_key_ends_the_start(tmp_path: Path) -> None:
    options = ["--secret-key-file", "/nowhere", "--clients-directory", str(tmp_path)]
    with (
        pytest.raises(AssertionError, match="cannot read the secret key in /nowhere"),
        coordinator_process(options=options),
    ):
        pass
