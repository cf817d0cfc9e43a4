"""make_zmq_socket: who binds, what bounds the queues, and what is left when it fails."""

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from enginecore_client import AddressError, make_zmq_socket

ANY_PORT = "tcp://127.0.0.1:0"


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    with zmq.Context() as running:
        yield running


@pytest.mark.parametrize(
    ("kind", "receives", "sends"),
    [(zmq.ROUTER, 0, 0), (zmq.DEALER, 0, 0), (zmq.PULL, 0, None), (zmq.PUSH, None, 0)],
    ids=["ROUTER", "DEALER", "PULL", "PUSH"],
)
@pytest.mark.parametrize("bind", [None, True, False])
def test_who_binds_is_an_option(
    context: zmq.Context[Any], kind: int, receives: int | None, sends: int | None, bind: bool | None
) -> None:
    binds = kind != zmq.PUSH if bind is None else bind
    with make_zmq_socket(
        context, ANY_PORT if binds else "tcp://127.0.0.1:9", kind, bind=bind, linger=0
    ) as socket:
        where = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        assert (int(where.rpartition(":")[2]) > 1024) is binds
        assert socket.linger == 0
        if receives is not None:
            assert socket.getsockopt(zmq.RCVHWM) == receives
        if sends is not None:
            assert socket.getsockopt(zmq.SNDHWM) == sends


@pytest.mark.parametrize("connects", ["pull", "push"])
def test_outputs_pass_whichever_side_binds(context: zmq.Context[Any], connects: str) -> None:
    def made(kind: int, address: str, *, bind: bool) -> zmq.Socket[bytes]:
        return make_zmq_socket(context, address, kind, bind=bind, linger=0)

    first, second = (zmq.PUSH, zmq.PULL) if connects == "pull" else (zmq.PULL, zmq.PUSH)
    with made(first, ANY_PORT, bind=True) as bound:
        address = bound.getsockopt_string(zmq.LAST_ENDPOINT)
        with made(second, address, bind=False) as connected:
            push, pull = (bound, connected) if connects == "pull" else (connected, bound)
            push.send_multipart([b"body", b"aux"])
            assert pull.poll(5000)
            assert pull.recv_multipart() == [b"body", b"aux"]


def test_identity_reaches_the_router(context: zmq.Context[Any]) -> None:
    with make_zmq_socket(context, ANY_PORT, zmq.ROUTER, linger=0) as router:
        address = router.getsockopt_string(zmq.LAST_ENDPOINT)
        with make_zmq_socket(
            context, address, zmq.DEALER, bind=False, identity=b"\x01\x00", linger=0
        ) as dealer:
            dealer.send(b"READY")
            assert router.poll(5000)
            assert router.recv_multipart() == [b"\x01\x00", b"READY"]


def test_an_address_in_use_leaves_no_socket(context: zmq.Context[Any]) -> None:
    with make_zmq_socket(context, ANY_PORT, zmq.PULL, linger=0) as taken:
        address = taken.getsockopt_string(zmq.LAST_ENDPOINT)
        with pytest.raises(AddressError, match="give port 0 for a free one"):
            make_zmq_socket(context, address, zmq.PULL)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/tmp/" + "x" * 120, "File name too long; give a shorter path"),
        ("/nonexistent/x", "No such file or directory; make its directory first"),
    ],
)
def test_a_path_that_cannot_be_bound(context: zmq.Context[Any], path: str, text: str) -> None:
    with pytest.raises(AddressError, match=text):
        make_zmq_socket(context, f"ipc://{path}", zmq.PULL)


def test_ipv6_in_brackets(context: zmq.Context[Any]) -> None:
    with make_zmq_socket(context, "tcp://[::1]:0", zmq.PULL, linger=0) as socket:
        assert socket.getsockopt_string(zmq.LAST_ENDPOINT).startswith("tcp://[::1]:")
