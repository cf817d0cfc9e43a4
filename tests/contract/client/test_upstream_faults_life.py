"""Faults that users of vLLM met, held from here: how clients and engines come and go.

The number in a test's name is its row in docs/upstream-faults.md.
"""

import subprocess
import sys
import time

import msgspec
import pytest

from enginecore_client import AsyncMPClient, SyncMPClient
from enginecore_wire.contract import TransportConfig
from support.eventually import eventually
from support.faces import FACES, params
from support.pod import Pod, client_addresses
from support.protocol_peer import ProtocolPeer

PROMPT = [7, 11, 13]
ATTACH_SECONDS = 1.0
CLOSE_SECONDS = 1.0

CLIENT = """
import json, os, sys
from enginecore_client import OutputKind, SamplingParams, SyncMPClient
client = SyncMPClient(json.loads(sys.argv[1]))
params = SamplingParams(max_tokens=2000, output_kind=OutputKind.DELTA)
next(client.generate([7, 11, 13], params))
print("streaming", flush=True)
os.kill(os.getpid(), 9)
"""


def tokens(client: SyncMPClient, count: int) -> list[int]:
    return [t for o in client.generate(PROMPT, params(count)) for t in o.new_token_ids]


def test_fault_32136_a_client_that_comes_back_attaches_within_a_second(pod: Pod) -> None:
    addresses = client_addresses([pod])
    command = [sys.executable, "-c", CLIENT, msgspec.json.encode(addresses).decode()]
    died = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert (died.returncode, died.stdout) == (-9, "streaming\n"), died.stderr
    started = time.monotonic()
    with SyncMPClient(addresses, ready_timeout=30) as client:
        assert tokens(client, 4) == [7, 11, 13, 7]
        assert time.monotonic() - started < ATTACH_SECONDS
    eventually(lambda: pod.status().in_flight == 0, "what the dead client left is aborted")


@pytest.mark.parametrize("kind", FACES)
def test_fault_15341_round_trip_over_ipv6(start_pod, kind: str) -> None:
    transport = TransportConfig(host="::1", input_port=0, output_port=0, http_port=0)
    pod = start_pod("--tokens", "8", transport=transport)
    addresses = {
        "input_address": f"tcp://[::1]:{pod.input_port}",
        "output_address": f"tcp://[::1]:{pod.output_port}",
    }
    face = FACES[kind](addresses)
    outputs = list(face.generate(PROMPT, params(8)))
    assert [t for output in outputs for t in output.new_token_ids] == [7, 11, 13, 7, 11, 13, 7, 11]
    face.close()


def test_fault_13298_closing_does_not_wait_for_what_nobody_takes(peer: ProtocolPeer) -> None:
    client = SyncMPClient(peer.addresses)
    sockets = client._driver.core._fleet.connections
    before = set(sockets)
    peer.close(0)
    eventually(lambda: set(sockets) - before, "a new pair, whose HELLO nobody takes")
    begin = time.monotonic()
    client.close()
    assert time.monotonic() - begin < CLOSE_SECONDS
    assert not client.resources._thread.is_alive()


async def test_fault_32116_what_a_vanished_client_asked_for_is_aborted(pod: Pod) -> None:
    client = AsyncMPClient(client_addresses([pod]))
    streams = [client.generate(PROMPT, params(2000)) for _ in range(5)]
    for stream in streams:
        await anext(stream)
    assert pod.status().in_flight == 5
    client.close()
    eventually(lambda: pod.status().in_flight == 0, "aborted")
    assert pod.status().phase == "Ready"
