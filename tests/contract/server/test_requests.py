"""What clients ask for, good and bad, and what reaches the engine."""

import resource
import signal
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from enginecore_wire.codec import MsgpackEncoder
from enginecore_wire.control import Limits, Ready, Reject, Replaced, Stats
from enginecore_wire.outputs import EngineCoreOutputs, FinishReason
from enginecore_wire.requests import RequestType
from support.eventually import eventually
from support.pod import LOOPBACK, Pod
from support.pod_pages import sample, short
from support.raw_client import RawClient, request

MakePod = Callable[..., Pod]
Connect = Callable[..., RawClient]


def test_an_oversized_frame_is_refused(make_pod: MakePod, connect: Connect) -> None:
    client = connect(make_pod(limits=Limits(frame_bytes=10_000)))
    client.ready()
    client.send(b"\x00", b"x" * 10_001)
    assert client.expect(Reject).code == "too_large"
    client.add(request("after"))
    client.tokens("after")


def test_a_far_too_large_frame_costs_its_sender_the_connection_only(
    make_pod: MakePod, connect: Connect
) -> None:
    pod = make_pod(limits=Limits(frame_bytes=10_000), liveness=short())
    rude, polite = connect(pod), connect(pod)
    rude.ready()
    polite.ready()
    rude.send(b"\x00", b"x" * (4 << 20))
    eventually(lambda: pod.status().clients == 1)
    polite.add(request("unharmed"))
    polite.tokens("unharmed")


@pytest.mark.parametrize("claimed", [0, 2, 63, 5000])
def test_the_server_writes_the_slot_itself(
    make_pod: MakePod, connect: Connect, claimed: int
) -> None:
    pod = make_pod()
    client, other = connect(pod), connect(pod)
    client.ready()
    other.ready()
    client.add(request("mine", client_index=claimed))
    client.tokens("mine")
    client.call(9, "is_sleeping", slot=claimed)
    assert client.answer(9) is False
    assert not isinstance(other.receive(0.1), EngineCoreOutputs)


def test_large_frames_pass_untouched(make_pod: MakePod, connect: Connect) -> None:
    client = connect(make_pod("--payload-bytes", "300000", "--max-model-len", "70000"))
    client.ready()
    client.add(request("large", prompt_token_ids=[7] * 60_000, max_tokens=2))
    first = client.expect(EngineCoreOutputs)
    assert first.outputs[0].trace_headers == {"padding": "x" * 300_000}


def test_ids_are_unique_across_clients(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod("--token-seconds", "0.01", "--tokens", "1000")
    first, second = connect(pod), connect(pod)
    first.ready()
    second.ready()
    first.add(request("taken", max_tokens=1000))
    first.expect(EngineCoreOutputs)
    for client in (first, second):
        client.add(request("taken"))
        refusal = client.expect(Reject)
        assert (refusal.code, refusal.request_id) == ("duplicate_request_id", "taken")


def test_an_abort_touches_only_its_senders_requests(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod("--token-seconds", "0.005", "--tokens", "30")
    owner, stranger = connect(pod), connect(pod)
    owner.ready()
    stranger.ready()
    owner.add(request("safe", max_tokens=30))
    owner.expect(EngineCoreOutputs)
    stranger.abort("safe", "unheard-of")
    tokens, reason = owner.tokens("safe")
    assert reason is FinishReason.LENGTH
    assert len(tokens) == 29
    assert ["abort", ["safe"]] not in owner.journal(1)
    assert sample(pod, "enginecore_server_foreign_aborts_total") == 1.0


def test_an_abort_clears_the_books(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod("--token-seconds", "0.01", "--tokens", "100000", "--max-model-len", "200000")
    client = connect(pod)
    client.ready()
    client.add(request("gone", max_tokens=100_000))
    client.expect(EngineCoreOutputs)
    client.abort("gone")
    eventually(lambda: pod.status().in_flight == 0)
    assert ["abort", ["gone"]] in client.journal(1)


def test_overload_is_refused_and_recovers(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod("--ignore", limits=Limits(in_flight=3))
    client, other = connect(pod), connect(pod)
    client.ready()
    other.ready()
    for number in range(5):
        client.add(request(f"r{number}"))
    assert [client.expect(Reject).request_id for _ in range(2)] == ["r3", "r4"]
    other.add(request("others-have-room"))
    eventually(lambda: pod.status().in_flight == 4)
    client.abort("r0")
    client.add(request("r5"))
    eventually(lambda: ["add", "r5"] in other.journal(1))


def test_all_clients_together_have_a_limit(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod("--ignore", limits=Limits(in_flight=3, in_flight_total=4))
    clients = [connect(pod) for _ in range(2)]
    for client in clients:
        limits = client.ready().limits
        assert (limits.in_flight, limits.in_flight_total) == (3, 4)
        assert (limits.frame_bytes, limits.prompt_tokens) == (256 << 20, 2048)
    for number in range(3):
        clients[0].add(request(f"a-{number}"))
    eventually(lambda: pod.status().in_flight == 3)
    for number in range(2):
        clients[1].add(request(f"b-{number}"))
    refusal = clients[1].expect(Reject)
    assert (refusal.code, refusal.request_id) == ("overloaded", "b-1")
    assert "for all clients" in refusal.message
    clients[0].abort("a-0")
    eventually(lambda: pod.status().in_flight == 3)
    clients[1].add(request("b-2"))
    eventually(lambda: pod.status().in_flight == 4)


def test_a_client_that_does_not_read_is_bounded_cut_off_and_told(
    make_pod: MakePod, connect: Connect
) -> None:
    limit = 4 << 20
    pod = make_pod(
        "--payload-bytes", "20000", "--tokens", "100000", "--max-model-len", "200000",
        transport=msgspec.structs.replace(LOOPBACK, backlog_bytes=limit),
    )  # fmt: skip
    slow = connect(pod, name="slow", receive_hwm=10)
    fast = connect(pod, name="fast")
    slow.ready()
    fast.ready()
    before = resident_bytes(pod)
    slow.add(request("unread", max_tokens=100_000))
    queued = []

    def given_up() -> bool:
        sessions = pod.status().sessions
        queued.extend(session.queued_bytes for session in sessions)
        return [session.name for session in sessions] == ["fast"]

    fast.add(request("read", max_tokens=2000))
    tokens, reason = fast.tokens("read")
    assert (len(tokens), reason) == (2000, FinishReason.LENGTH), "it is not touched"
    eventually(given_up)
    assert max(queued) <= limit
    in_socket = 1000 * 20_000
    assert resident_bytes(pod) - before < 2 * (limit + in_socket)
    assert ["abort", ["unread"]] in fast.journal(1)
    assert sample(pod, "enginecore_server_slow_clients_total") == 1.0
    assert sample(pod, "enginecore_server_queued_bytes") == 0.0

    def told() -> bool:
        slow.hello()
        while (message := slow.receive(0.2)) is not None:
            if isinstance(message, Replaced):
                return "given up" in message.reason
        return False

    eventually(told)


def test_a_flood_of_outputs_holds_up_nobody_else(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod("--payload-bytes", "300", "--tokens", "100000", "--max-model-len", "200000")
    flood, single = connect(pod, name="flood"), connect(pod, name="single")
    flood.ready()
    single.ready()
    reading = threading.Event()

    def read() -> None:
        while not reading.is_set():
            flood.receive(0.1)

    reader = threading.Thread(target=read)
    for number in range(100):
        flood.add(request(f"flood-{number}", max_tokens=100_000))
    reader.start()
    try:
        times = []
        for number in range(30):
            begun = time.monotonic()
            single.add(request(f"single-{number}", max_tokens=2))
            assert len(single.tokens(f"single-{number}")[0]) == 2
            times.append(time.monotonic() - begun)
    finally:
        reading.set()
        reader.join()
    print(f"beside a flood: median {1e3 * statistics.median(times):.1f} ms, "
          f"longest {1e3 * max(times):.1f} ms")  # fmt: skip
    assert statistics.median(times) < 0.5


def resident_bytes(pod: Pod) -> int:
    """Return the memory of the server's process."""
    pages = Path(f"/proc/{pod.process.pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def test_a_flood_of_one_client_does_not_starve_another(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod("--tokens", "2", "--max-num-seqs", "4096", limits=Limits(in_flight=2000))
    flood, single = connect(pod), connect(pod)
    flood.ready()
    single.ready()
    pod.process.send_signal(signal.SIGSTOP)
    for number in range(900):
        flood.add(request(f"flood-{number}"))
    single.add(request("single"))
    pod.process.send_signal(signal.SIGCONT)
    single.tokens("single")
    order = [what for kind, what in single.journal(1) if kind == "add"]
    assert order.index("single") < 450


def test_replies_to_a_client_that_left_reach_nobody(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod(transport=msgspec.structs.replace(LOOPBACK, max_clients=1))
    for _ in range(20):
        leaver = connect(pod, hello=False)
        eventually(lambda: _greeted(leaver))  # noqa: B023 - called within the turn
        leaver.call(77, "collective_rpc", "journal")
        leaver.send(b"\x89", b"\x80")
        owner = connect(pod, hello=False)
        eventually(lambda: _greeted(owner))  # noqa: B023 - called within the turn
        owner.call(77, "is_sleeping")
        assert owner.answer(77) is False
        owner.send(b"\x89", b"\x80")


def _greeted(client: RawClient) -> bool:
    client.hello()
    message = client.receive(0.5)
    assert not isinstance(message, EngineCoreOutputs)
    return isinstance(message, Ready)


def test_stats_go_to_all_clients(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod("--stats", "--token-seconds", "0.02", "--tokens", "20")
    busy, idle = connect(pod), connect(pod)
    busy.ready()
    idle.ready()
    busy.add(request("work", max_tokens=20))

    def running(count: int) -> Callable[[Any], bool]:
        return lambda item: (
            isinstance(item, Stats) and item.scheduler_stats.num_running_reqs == count
        )

    idle.until(running(1))
    idle.until(running(0))


def test_an_engine_aborted_to_idle_reads_idle(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod("--stats", "--token-seconds", "0.02", "--tokens", "1000")
    client = connect(pod)
    client.ready()
    client.add(request("work", max_tokens=1000))
    client.until(lambda item: isinstance(item, Stats) and item.scheduler_stats.num_running_reqs)
    client.abort("work")
    client.until(lambda item: isinstance(item, Stats) and not item.scheduler_stats.num_running_reqs)


def test_sends_to_a_stopped_engine_are_bounded_by_the_limit(
    make_pod: MakePod, connect: Connect
) -> None:
    pod = make_pod("--ignore", limits=Limits(in_flight=50))
    client = connect(pod)
    client.ready()
    body = MsgpackEncoder().encode(request("x"))[0]
    for number in range(200):
        client.input.send_multipart(
            [RequestType.ADD, body.replace(b"\xa1x", b"\xa4%04d" % number)], zmq.NOBLOCK
        )
    codes = {client.expect(Reject).code for _ in range(150)}
    assert codes == {"overloaded"}
    assert pod.status().in_flight == 50
