"""A network that drops every packet without a word: no connection breaks, nothing more comes."""

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec
import pytest

from enginecore_client.errors import EngineDeadError, EngineNotReadyError
from support.eventually import eventually
from support.faces import Face, params
from support.namespace import NetworkNamespace
from support.pod import LOOPBACK, Pod, client_addresses, stub_config

BUDGET_SECONDS = 5.0
LONG = 2000


@pytest.fixture
def namespace() -> Iterator[NetworkNamespace]:
    with NetworkNamespace() as namespace:
        yield namespace


@pytest.fixture
def pod(namespace: NetworkNamespace) -> Iterator[Pod]:
    transport = msgspec.structs.replace(LOOPBACK, host=namespace.address)
    config = stub_config("--tokens", "100000", "--token-seconds", "0.01", transport=transport)
    program = (*namespace.program, sys.executable, "-m", "enginecore_server")
    with Pod(config, program=program, host=namespace.address) as pod:
        yield pod.wait_ready()


def served(face: Face) -> bool:
    with suppress(EngineDeadError, EngineNotReadyError):
        return len(list(face.generate([1, 2, 3], params(4)))) == 4
    return False


def test_every_pending_call_fails_within_five_seconds(
    make_face: Callable[..., Face], namespace: NetworkNamespace, pod: Pod
) -> None:
    face = make_face(client_addresses([pod]))
    stream = face.generate([1, 2, 3], params(LONG))
    next(stream)
    with ThreadPoolExecutor() as threads:
        calls = [
            threads.submit(list, stream),
            threads.submit(face.call, "collective_rpc", "hang"),
            threads.submit(list, face.generate([1, 2, 3], params(LONG))),
        ]
        eventually(lambda: pod.status().in_flight == 2)
        namespace.drop_packets(begin=True)
        dropped = time.monotonic()
        errors = [call.exception(timeout=30) for call in calls]
        seconds = time.monotonic() - dropped
    assert {type(error) for error in errors} == {EngineDeadError}
    assert seconds <= BUDGET_SECONDS
    namespace.drop_packets(begin=False)
    eventually(lambda: pod.status().in_flight == 0, "what was given up is aborted", deadline=20)


def test_the_engine_is_used_again_once_packets_arrive(
    make_face: Callable[..., Face], namespace: NetworkNamespace, pod: Pod
) -> None:
    face = make_face(client_addresses([pod]))
    stream = face.generate([1, 2, 3], params(LONG))
    next(stream)
    namespace.drop_packets(begin=True)
    with pytest.raises(EngineDeadError):
        list(stream)
    namespace.drop_packets(begin=False)
    eventually(lambda: served(face), "the engine serves again", deadline=20)
