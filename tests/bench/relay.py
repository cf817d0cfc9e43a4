"""What the engine server adds between a client and an engine.

Round trip: one request of one token, through the server against vLLM's native sockets to the
same engine in the same run. Throughput: messages of 300 bytes for one and for 64 clients, per
second of CPU time that the server process uses (all its threads).
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import zmq

from enginecore_wire.codec import MsgpackEncoder
from enginecore_wire.handshake import EngineAddresses, EngineInit
from enginecore_wire.requests import RequestType
from support.measures import Measure
from support.pod import STUB_ENGINE, Pod, stub_config
from support.raw_client import RawClient, request

ROUNDS = 12
ROUND_TRIPS = 250
FRAMES = 128_000
PADDING = 225
"""Makes an engine message of one token about 300 bytes long."""


@contextmanager
def native_engine() -> Iterator[tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]", bytes]]:
    """Run a stub engine behind vLLM's native sockets; gives input, output and its identity."""
    context = zmq.Context()
    sockets = []
    for kind in (zmq.ROUTER, zmq.ROUTER, zmq.PULL):
        socket = context.socket(kind)
        socket.bind("tcp://127.0.0.1:0")
        sockets.append(socket)
    handshake, requests, outputs = sockets
    places = [str(socket.get(zmq.LAST_ENDPOINT), "ascii") for socket in sockets]
    port = places[0].rpartition(":")[2]
    engine = subprocess.Popen(
        [sys.executable, str(STUB_ENGINE), "--data-parallel-rpc-port", port,
         "--payload-bytes", str(PADDING)],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        identity = handshake.recv_multipart()[0]
        init = EngineInit(EngineAddresses([places[1]], [places[2]]))
        handshake.send_multipart([identity, msgspec.msgpack.encode(init)])
        requests.recv_multipart()
        yield requests, outputs, identity
    finally:
        engine.terminate()
        engine.wait()
        context.destroy(linger=0)


def round_trip(client: RawClient, count: int) -> list[float]:
    """Return seconds per request through the server; reads what it asked for and no more."""
    seconds = []
    encoder = MsgpackEncoder()
    for index in range(count):
        message = request(f"trip-{time.monotonic_ns()}-{index}", max_tokens=1, client_index=1)
        frames = [RequestType.ADD, *encoder.encode(message)]
        begin = time.perf_counter()
        client.input.send_multipart(frames)
        while len(client.output.recv_multipart()[0]) < PADDING:
            continue
        seconds.append(time.perf_counter() - begin)
    return seconds


def native_round_trip(
    requests: "zmq.Socket[bytes]", outputs: "zmq.Socket[bytes]", identity: bytes, count: int
) -> list[float]:
    """Return seconds per request without a server between."""
    seconds = []
    encoder = MsgpackEncoder()
    for index in range(count):
        message = request(f"trip-{time.monotonic_ns()}-{index}", max_tokens=1)
        frames = [identity, RequestType.ADD, *encoder.encode(message)]
        begin = time.perf_counter()
        requests.send_multipart(frames)
        outputs.recv_multipart()
        seconds.append(time.perf_counter() - begin)
    return seconds


def compare_round_trips() -> tuple[float, float]:
    """Return the round trip through the server and without one, in seconds.

    Both are measured in turns; each counts with its best round's median, because whatever else
    the machine does only ever adds.
    """
    through, without = [], []
    engine = ("--payload-bytes", str(PADDING))
    with (
        native_engine() as (requests, outputs, identity),
        Pod(stub_config(*engine)).wait_ready() as pod,
        RawClient(pod.input_port, pod.output_port) as client,
    ):
        client.ready()
        for _ in range(ROUNDS):
            through.append(statistics.median(round_trip(client, ROUND_TRIPS)))
            without.append(
                statistics.median(native_round_trip(requests, outputs, identity, ROUND_TRIPS))
            )
    return min(through), min(without)


def relayed_per_cpu_second(clients: int) -> float:
    """Return engine messages the server passes on per second of its CPU time."""
    tokens = FRAMES // clients
    steps = max(1, 64 // clients)
    engine = ("--payload-bytes", str(PADDING), "--tokens", str(tokens), "--steps", str(steps),
              "--max-model-len", str(FRAMES + 10))  # fmt: skip
    with ExitStack() as stack:
        pod = stack.enter_context(Pod(stub_config(*engine))).wait_ready()
        members = [
            stack.enter_context(RawClient(pod.input_port, pod.output_port)) for _ in range(clients)
        ]
        for member in members:
            member.ready()
        before = cpu_seconds(pod.process.pid)
        received = 0
        poller = zmq.Poller()
        for number, member in enumerate(members):
            member.add(request(f"flood-{number}", max_tokens=tokens))
            poller.register(member.output, zmq.POLLIN)
        while received < tokens * clients:
            for socket, _ in poller.poll(5000):
                received += drain(socket)
        used = cpu_seconds(pod.process.pid) - before
    return received / used


def drain(socket: "zmq.Socket[bytes]") -> int:
    """Take up to 256 messages; return how many were engine messages."""
    taken = 0
    for _ in range(256):
        try:
            first = socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            break
        if socket.getsockopt(zmq.RCVMORE):
            socket.recv()
        else:
            taken += len(first) >= PADDING
    return taken


def cpu_seconds(pid: int) -> float:
    """Return the CPU time a process has used, all its threads, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print."""
    through, without = compare_round_trips()
    Measure("round trip, native", without * 1e6, "us").print()
    Measure("round trip, through the server", through * 1e6, "us").print()
    Measure("round trip, ratio", through / without, "x", 2.2, "at_most").print()
    for clients in (1, 64):
        rate = relayed_per_cpu_second(clients)
        name = f"messages per CPU-second, {clients} client{'s' if clients > 1 else ''}"
        Measure(name, rate, "/s", 150_000, "at_least").print()


if __name__ == "__main__":
    main()
