"""What the engine server adds between a client and an engine.

Round trip: one request of one token, through the server against vLLM's native sockets to the
same engine in the same run. Both ends have vLLM's shape: an engine of three threads (input,
loop, output), a front end whose thread reads outputs into a queue. The same is shown without a
bar for bare sockets at both ends, an echo that nobody serves a model with.

Throughput: messages of 300 bytes for one and for 64 clients, per second of CPU time that the
server process uses (all its threads), and the same for a relay of bare sockets that reads
nothing; they take turns, and the best of each's three floods counts.
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
from tempfile import TemporaryDirectory

import msgspec
import zmq

from enginecore_wire.codec import MsgpackEncoder
from enginecore_wire.handshake import EngineAddresses, EngineInit
from enginecore_wire.requests import RequestType
from support.keys import PodKeys
from support.measures import Measure
from support.pod import LOOPBACK, STUB_ENGINE, Pod, stub_config
from support.raw_client import RawClient, request

ROUNDS = 12
ROUND_TRIPS = 250
FRAMES = 128_000
FLOODS = 3
BARE_RELAY = STUB_ENGINE.with_name("bare_relay.py")
BARS = {
    "1 client": 150_000,
    "64 clients": 150_000,
    "1 client, CURVE": 120_000,
    "64 clients, CURVE": 120_000,
}
"""Relayed messages per CPU-second, at least."""

PADDING = 225
"""Makes an engine message of one token about 300 bytes long."""


@contextmanager
def native_engine(
    *options: str, output_address: str = ""
) -> Iterator[tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]", bytes]]:
    """Run a stub engine behind vLLM's native sockets; gives input, output and its identity.

    The engine's outputs go to `output_address` instead, if there is one.
    """
    context = zmq.Context()
    sockets = []
    for kind in (zmq.ROUTER, zmq.ROUTER, zmq.PULL):
        socket = context.socket(kind)
        socket.bind("tcp://127.0.0.1:0")
        sockets.append(socket)
    handshake, requests, outputs = sockets
    places = [socket.getsockopt_string(zmq.LAST_ENDPOINT) for socket in sockets]
    port = places[0].rpartition(":")[2]
    engine = subprocess.Popen(
        [sys.executable, str(STUB_ENGINE), "--data-parallel-rpc-port", port,
         *options],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        identity = handshake.recv_multipart()[0]
        init = EngineInit(EngineAddresses([places[1]], [output_address or places[2]]))
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


def relayed_per_cpu_second(clients: int, *, curve: bool = False) -> float:
    """Return engine messages the server passes on per second of its CPU time."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="keys-")))
        keys = PodKeys(directory) if curve else None
        config = stub_config(
            *flood_options(clients), transport=LOOPBACK if keys is None else keys.transport
        )
        pod = stack.enter_context(Pod(config)).wait_ready()
        pair = None if keys is None else (keys.infer, keys.server.public)
        members = [
            stack.enter_context(RawClient(pod.input_port, pod.output_port, keys=pair))
            for _ in range(clients)
        ]
        for member in members:
            member.ready()
        before = cpu_seconds(pod.process.pid)
        for number, member in enumerate(members):
            member.add(request(f"flood-{number}", max_tokens=FRAMES // clients))
        received = read_flood([member.output for member in members], FRAMES // clients * clients)
        return received / (cpu_seconds(pod.process.pid) - before)


def bare_relayed_per_cpu_second() -> float:
    """Return the same for a relay that reads and books nothing, with one client."""
    with ExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory(prefix="bare-"))
        address = f"ipc://{directory}/outputs"
        relay = stack.enter_context(
            subprocess.Popen([sys.executable, str(BARE_RELAY), address], stdout=subprocess.PIPE)
        )
        stack.callback(relay.kill)
        assert relay.stdout is not None
        place = relay.stdout.readline().decode().strip()
        requests, _, identity = stack.enter_context(
            native_engine(*flood_options(1), output_address=address)
        )
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        stack.callback(context.destroy, 0)
        client = context.socket(zmq.DEALER)
        client.set(zmq.RCVHWM, 0)
        client.connect(place)
        client.send(b"here")
        before = cpu_seconds(relay.pid)
        message = request("flood", max_tokens=FRAMES)
        requests.send_multipart([identity, RequestType.ADD, *MsgpackEncoder().encode(message)])
        received = read_flood([client], FRAMES)
        return received / (cpu_seconds(relay.pid) - before)


def flood_options(clients: int) -> list[str]:
    """Return the stub engine's options: as many tokens as together make FRAMES messages."""
    steps = max(1, 64 // clients)
    return [
        "--payload-bytes", str(PADDING), "--tokens", str(FRAMES // clients),
        "--steps", str(steps), "--max-model-len", str(FRAMES + 10),
    ]  # fmt: skip


def read_flood(outputs: list["zmq.Socket[bytes]"], count: int) -> int:
    """Take `count` engine messages off the sockets.

    Raises:
        TimeoutError: no more came, so some were lost.
    """
    poller = zmq.Poller()
    for socket in outputs:
        poller.register(socket, zmq.POLLIN)
    received = 0
    while received < count:
        ready = poller.poll(5000)
        if not ready:
            raise TimeoutError(f"{received} of {count} messages came")
        for socket, _ in ready:
            received += drain(socket)
    return received


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
    measure_floods()


def measure_floods() -> None:
    """Measure floods in turns with the floor's; each counts with its best."""
    floods: dict[str, list[float]] = {name: [] for name in ("floor", *BARS)}
    for _ in range(FLOODS):
        floods["floor"].append(bare_relayed_per_cpu_second())
        for name in BARS:
            count = int(name.partition(" ")[0])
            floods[name].append(relayed_per_cpu_second(count, curve="CURVE" in name))
    floor = max(floods.pop("floor"))
    Measure("messages per CPU-second, bare sockets", floor, "/s").print()
    for clients, rates in floods.items():
        name = f"messages per CPU-second, {clients}"
        Measure(name, max(rates), "/s", BARS[clients], "at_least").print()
        Measure(f"{name}, to bare sockets", max(rates) / floor, "x").print()


if __name__ == "__main__":
    main()
