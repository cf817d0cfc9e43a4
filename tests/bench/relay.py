"""What the engine server adds between a client and an engine.

Round trip: one request of one token, through the server against vLLM's native sockets to the
same engine in the same run. Both ends have vLLM's shape: an engine of three threads (input,
loop, output), a front end whose thread reads outputs into a queue. The same is shown without a
bar for bare sockets at both ends, an echo that nobody serves a model with.

Throughput: messages of 300 bytes for one and for 64 clients, per second of CPU time that the
server process uses (all its threads); the best of three floods counts.
"""

import queue
import statistics
import subprocess
import sys
import threading
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
FLOODS = 3
PADDING = 225
"""Makes an engine message of one token about 300 bytes long."""


@contextmanager
def native_engine(
    *options: str,
) -> Iterator[tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]", bytes]]:
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
         *options],
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


class Outputs:
    """Takes engine messages off a socket: in a thread with a queue, or at the caller's call."""

    def __init__(self, socket: "zmq.Socket[bytes]", threaded: bool) -> None:
        self._socket = socket
        self._queue: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._pump) if threaded else None
        if self._thread is not None:
            self._thread.start()

    def next(self) -> None:
        """Return when the next engine message is here."""
        if self._thread is not None:
            self._queue.get()
        else:
            while len(self._socket.recv_multipart()[0]) < PADDING:
                continue

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _pump(self) -> None:
        while not self._ended.is_set():
            if self._socket.poll(200):
                size = len(self._socket.recv_multipart()[0])
                if size >= PADDING:
                    self._queue.put(size)


def round_trips(
    requests: "zmq.Socket[bytes]", outputs: Outputs, count: int, prefix: list[bytes]
) -> float:
    """Return the median of seconds per request; `prefix` goes before each message."""
    seconds = []
    encoder = MsgpackEncoder()
    for index in range(count):
        slot = 0 if prefix else 1
        message = request(f"{time.monotonic_ns()}-{index}", max_tokens=1, client_index=slot)
        frames = [*prefix, RequestType.ADD, *encoder.encode(message)]
        begin = time.perf_counter()
        requests.send_multipart(frames)
        outputs.next()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def compare_round_trips(threaded: bool) -> tuple[float, float]:
    """Return the round trip through the server and without one, in seconds.

    Both are measured in turns; each counts with its best round's median, because whatever else
    the machine does only ever adds.
    """
    through, without = [], []
    options = ["--payload-bytes", str(PADDING), *(["--threads"] if threaded else [])]
    with ExitStack() as stack:
        requests, native, identity = stack.enter_context(native_engine(*options))
        pod = stack.enter_context(Pod(stub_config(*options))).wait_ready()
        client = stack.enter_context(RawClient(pod.input_port, pod.output_port))
        client.ready()
        relayed_outputs = Outputs(client.output, threaded)
        stack.callback(relayed_outputs.close)
        native_outputs = Outputs(native, threaded)
        stack.callback(native_outputs.close)
        for _ in range(ROUNDS):
            through.append(round_trips(client.input, relayed_outputs, ROUND_TRIPS, []))
            without.append(round_trips(requests, native_outputs, ROUND_TRIPS, [identity]))
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
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def main() -> None:
    """Measure and print."""
    through, without = compare_round_trips(threaded=True)
    Measure("round trip, native", without * 1e6, "us").print()
    Measure("round trip, through the server", through * 1e6, "us").print()
    Measure("round trip, ratio", through / without, "x", 2.2, "at_most").print()
    through, without = compare_round_trips(threaded=False)
    Measure("round trip, bare sockets, native", without * 1e6, "us").print()
    Measure("round trip, bare sockets, through the server", through * 1e6, "us").print()
    Measure("round trip, bare sockets, ratio", through / without, "x").print()
    for clients in (1, 64):
        rate = max(relayed_per_cpu_second(clients) for _ in range(FLOODS))
        name = f"messages per CPU-second, {clients} client{'s' if clients > 1 else ''}"
        Measure(name, rate, "/s", 150_000, "at_least").print()


if __name__ == "__main__":
    main()
