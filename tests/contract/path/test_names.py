"""Servers and coordinator bound to a DNS name, and found by one (C8)."""

from collections.abc import Callable

import msgspec
import zmq

from support.coordination import Subscriber, coordinator_process
from support.eventually import eventually
from support.faces import Face, params
from support.pod import LOOPBACK, Pod, client_addresses

NAME = "localhost"


def by_name(address: str) -> str:
    """Return the address with the name for its host."""
    return f"tcp://{NAME}:{address.rpartition(':')[2]}"


def test_everything_bound_and_reached_by_name(
    make_pod: Callable[..., Pod], make_face: Callable[..., Face]
) -> None:
    listen = f"tcp://{NAME}:*"
    with coordinator_process(listen, listen) as coordinator, zmq.Context() as context:
        pods = [
            make_pod(
                "--stats", "--tokens", "100000", "--token-seconds", "0.01",
                rank=rank,
                transport=msgspec.structs.replace(LOOPBACK, host=NAME),
                coordinator_address=by_name(coordinator.report_address),
            )
            for rank in (0, 1)
        ]  # fmt: skip
        addresses = client_addresses(pods, coordinator.publish_address)
        named = {
            key: by_name(value) if isinstance(value, str) else [by_name(each) for each in value]
            for key, value in addresses.items()
        }
        face = make_face(named)
        for rank in (0, 1):
            outputs = list(face.generate([1, 2, 3], params(4), data_parallel_rank=rank))
            assert [token for o in outputs for token in o.new_token_ids] == [1, 2, 3, 1]
        stream = face.generate([1, 2, 3], params(5000), data_parallel_rank=1)
        next(stream)
        subscriber = Subscriber(context, by_name(coordinator.publish_address), ipv6=True)

        def running() -> list[int]:
            """Return how many requests run on each rank, as far as that was published."""
            published = subscriber.read()
            loads = published[-1][0] if published else None
            return [row[1] for row in loads or ()]

        eventually(lambda: running() == [0, 1], "the load of both engines")
        stream.close()  # type: ignore[attr-defined]
        subscriber.socket.close(linger=0)
