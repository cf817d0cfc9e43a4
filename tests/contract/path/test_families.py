"""IPv4, IPv6 and both (C5): servers, coordinator and clients over real sockets."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
import zmq

from support.coordination import Subscriber, coordinator_process
from support.eventually import eventually
from support.faces import Face, params
from support.pod import LOOPBACK, Pod, stub_config

NAME = "engine.test"
EXPECTED = [1, 2, 3, 1]


def reach(pods: list[Pod], host: str, coordinator: str = "") -> dict[str, Any]:
    """Return the addresses of pods under a host of the client's choice."""
    return {
        "input_address": [f"tcp://{host}:{pod.input_port}" for pod in pods],
        "output_address": [f"tcp://{host}:{pod.output_port}" for pod in pods],
        "stats_update_address": coordinator,
    }


def tokens(face: Face, rank: int = 0) -> list[int]:
    outputs = list(face.generate([1, 2, 3], params(4), data_parallel_rank=rank))
    return [token for output in outputs for token in output.new_token_ids]


@pytest.fixture
def listen_on() -> Iterator[Callable[..., Pod]]:
    """Return a function that starts a pod whose server listens on a host."""
    with ExitStack() as stack:

        def start(host: str, *options: str, **fields: Any) -> Pod:
            transport = msgspec.structs.replace(LOOPBACK, host=host)
            config = stub_config(*options, transport=transport, **fields)
            reached = "[::1]" if ":" in host else "127.0.0.1"
            return stack.enter_context(Pod(config, host=reached)).wait_ready()

        yield start


@pytest.mark.parametrize("listen", ["tcp://[::1]:*", "tcp://*:*"], ids=["IPv6", "both"])
def test_everything_over_ipv6(
    listen: str, listen_on: Callable[..., Pod], make_face: Callable[..., Face]
) -> None:
    """As in a cluster that has IPv6 alone."""
    with coordinator_process(listen, listen) as coordinator, zmq.Context() as context:

        def place(address: str) -> str:
            return f"tcp://[::1]:{address.rpartition(':')[2]}"

        pods = [
            listen_on(
                "::1", "--stats", "--tokens", "100000", "--token-seconds", "0.01",
                rank=rank,
                coordinator_address=place(coordinator.report_address),
            )
            for rank in (0, 1)
        ]  # fmt: skip
        publish = place(coordinator.publish_address)
        face = make_face(reach(pods, "[::1]", publish))
        assert [tokens(face, rank) for rank in (0, 1)] == [EXPECTED, EXPECTED]
        stream = face.generate([1, 2, 3], params(5000), data_parallel_rank=1)
        next(stream)
        subscriber = Subscriber(context, publish, ipv6=True)

        def running() -> list[int]:
            """Return how many requests run on each rank, as far as that was published."""
            published = subscriber.read()
            loads = published[-1][0] if published else None
            return [row[1] for row in loads or ()]

        eventually(lambda: running() == [0, 1], "the load of both engines")
        stream.close()  # type: ignore[attr-defined]
        subscriber.socket.close(linger=0)


def test_clients_of_both_families_at_one_engine(
    listen_on: Callable[..., Pod], make_face: Callable[..., Face]
) -> None:
    pod = listen_on("*", "--tokens", "100000", "--token-seconds", "0.01")
    faces = [make_face(reach([pod], host)) for host in ("127.0.0.1", "[::1]")]
    streams = [face.generate([1, 2, 3], params(5000)) for face in faces]
    for stream in streams:
        next(stream)
    status = pod.status()
    assert (status.clients, status.in_flight) == (2, 2)
    for stream in streams:
        stream.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_name_of_both_families_whose_server_has_one(
    host: str,
    listen_on: Callable[..., Pod],
    make_face: Callable[..., Face],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the addresses a name has, the client finds the one that answers."""
    pod = listen_on(host, "--tokens", "8")
    known = socket.getaddrinfo
    monkeypatch.setattr(
        "socket.getaddrinfo",
        lambda name, *rest, **options: (
            [*known("::1", 0), *known("127.0.0.1", 0)]
            if name == NAME
            else known(name, *rest, **options)
        ),
    )
    assert tokens(make_face(reach([pod], NAME))) == EXPECTED
