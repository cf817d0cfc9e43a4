"""Hostile clients at work on a pod, and a client that means well beside them.

The same for every engine: whatever is tried, the engine that is there before is there after it, and
answers.
"""

import os
import socket as sockets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import msgspec

from enginecore_wire.control import Pong, Ready, Reject
from enginecore_wire.outputs import ENGINE_CORE_DEAD, EngineCoreOutputs, FinishReason
from enginecore_wire.requests import SamplingParams
from support.eventually import eventually
from support.hostile_messages import Row, hostile_messages, polite_request
from support.pod import Pod
from support.raw_client import RawClient, request

ANSWER_SECONDS: Final = 30.0
CONNECTS: Final = 10_000
HELLOS: Final = 20_000
STRANGERS: Final = 6_000
ABOVE_OUTPUT_LIMIT: Final = 3 << 20
LONG: Final = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)

_GREETING: Final = (b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0")
                    + bytes(32))  # fmt: skip
"""How a ZMQ peer without security begins."""


class Town:
    """A pod, a client that means well, and what both were at the beginning.

    Args:
        pod: with a ready engine.
        stack: closes what is opened.
    """

    def __init__(self, pod: Pod, stack: ExitStack) -> None:
        self.pod = pod
        self._stack = stack
        self._engine = self._identity()
        self._count = 0
        self.polite = self.client("polite")
        self.ready = self.polite.ready(ANSWER_SECONDS)
        self._answer = self._ask()

    def client(self, name: str, **options: Any) -> RawClient:
        """Open one more client."""
        return self._stack.enter_context(
            RawClient(self.pod.input_port, self.pod.output_port, name=name, **options)
        )

    def rude(self) -> RawClient:
        """Open a client for something hostile."""
        client = self.client("rude")
        client.ready(ANSWER_SECONDS)
        return client

    def check(self, what: str) -> None:
        """Hold that the engine answers as it did at the beginning.

        Raises:
            AssertionError: it does not, or is another one; the text says after `what`.
        """
        try:
            answer = self._ask()
        except AssertionError as error:
            raise AssertionError(f"no answer after: {what}; {self.pod.tail()}") from error
        assert answer == self._answer, what
        assert self._identity() == self._engine, what

    def _ask(self) -> tuple[list[int], int]:
        self._count += 1
        name = f"polite-{self._count}"
        self.polite.add(polite_request(name))
        answer = self.polite.tokens(name, ANSWER_SECONDS)
        assert (len(answer[0]), answer[1]) == (2, FinishReason.LENGTH)
        return answer

    def _identity(self) -> tuple[int, int, list[int]]:
        assert self.pod.process.poll() is None, self.pod.tail()
        return self.pod.config.epoch, self.pod.process.pid, self.pod.engine_processes()


@contextmanager
def town(pod: Pod) -> Iterator[Town]:
    """Watch a pod while it is attacked."""
    with ExitStack() as stack:
        yield Town(pod, stack)
    lost = [line for line in pod.log if " asyncio: " in line]
    assert lost == [], "an exception got lost in the server's event loop"


def every_message(town: Town) -> None:
    """Each row of the table, and after each the client that means well."""
    rude = town.rude()
    for row in hostile_messages(town.ready):
        rude.send(*row.frames)
        _judge(rude, row)
        town.check(row.name)


def _judge(rude: RawClient, row: Row) -> None:
    """Hold what a hostile message leads to."""
    if not row.code:
        name = msgspec.msgpack.decode(row.frames[1])[0]
        assert len(rude.tokens(name, ANSWER_SECONDS)[0]) == 2, row.name
        return
    answer = rude.until(lambda item: isinstance(item, Reject | EngineCoreOutputs), ANSWER_SECONDS)
    assert isinstance(answer, Reject), (row.name, answer)
    assert answer.code == row.code, (row.name, answer)


def an_id_that_runs(town: Town) -> None:
    """A second request of an id that runs ends a vLLM."""
    rude = town.rude()
    rude.add(request("twice", sampling_params=LONG))
    rude.expect(EngineCoreOutputs, ANSWER_SECONDS)
    for client in (rude, town.polite):
        client.add(request("twice"))
        refusal = client.expect(Reject, ANSWER_SECONDS)
        assert (refusal.code, refusal.request_id) == ("duplicate_request_id", "twice")
    rude.abort("twice")
    town.check("a request of an id that runs")


def an_id_again_and_again(town: Town) -> None:
    """Abort and use again, as fast as can be sent: never two of one id in the engine."""
    rude = town.rude()
    for _ in range(200):
        rude.add(request("again", sampling_params=LONG))
        rude.abort("again")
    rude.ping(7)
    rude.expect(Pong, ANSWER_SECONDS)
    town.check("an id used again at once")


def requests_of_others(town: Town) -> None:
    """Aborting what is another's changes nothing."""
    rude = town.rude()
    town.polite.add(request("mine", sampling_params=LONG))
    town.polite.expect(EngineCoreOutputs, ANSWER_SECONDS)
    for _ in range(20):
        rude.abort("mine", "unheard-of", "")
    tokens, reason = town.polite.tokens("mine", ANSWER_SECONDS)
    assert reason is FinishReason.LENGTH
    assert len(tokens) > 300
    town.check("aborts of others' requests")


def slots_of_others(town: Town) -> None:
    """What names another's slot comes back to its sender."""
    rude = town.rude()
    slot = town.ready.slot
    rude.add(request("theirs", client_index=slot, max_tokens=2))
    assert len(rude.tokens("theirs", ANSWER_SECONDS)[0]) == 2
    rude.call(9, "is_sleeping", slot=slot)
    assert rude.answer(9, ANSWER_SECONDS) is False
    assert not isinstance(town.polite.receive(0.1), EngineCoreOutputs)
    town.check("slots of others")


def calls_that_fail(town: Town) -> None:
    """Arguments that a method does not take fail that call alone."""
    rude = town.rude()
    for call_id, (method, args) in enumerate(
        (
            ("is_sleeping", [1, 2, 3]),
            ("list_loras", [1, 2]),
            ("pin_lora", [{"a": 1}, 5]),
            ("add_lora", [5]),
            ("add_lora", [["a", 9, "/nowhere/at/all"]]),
            ("remove_lora", [[]]),
            ("pause_scheduler", [1, 2, 3, 4]),
            ("get_weight_version", [None]),
            ("collective_rpc", ["no_such_method"]),
            ("wake_up", [[7], 8, 9]),
        ),
        start=100,
    ):
        rude.call(call_id, method, *args)
        answer = rude.expect(EngineCoreOutputs, ANSWER_SECONDS).utility_output
        assert answer.call_id == call_id
        assert answer.failure_message, (method, args, answer)
        town.check(f"{method}{args}")


def forgeries_on_the_output_socket(town: Town) -> None:
    """Nothing but a HELLO is taken there."""
    rude = town.rude()
    for frames in (
        [ENGINE_CORE_DEAD],
        [b"\x81", msgspec.msgpack.encode(Ready(slot=1))],
        [b"\x00", msgspec.msgpack.encode(request("there"))],
        [b""],
    ):
        rude.send_on(rude.output, frames)
        assert rude.expect(Reject, ANSWER_SECONDS).code == "unknown_type"
        town.check(f"{frames[0]!r} on the output socket")


def frames_past_every_limit(town: Town) -> None:
    """They cost their sender the connection, and nobody else anything."""
    rude = town.rude()
    clients = town.pod.status().clients
    rude.send_on(rude.output, [b"\x80", bytes(ABOVE_OUTPUT_LIMIT)])
    eventually(lambda: town.pod.status().clients < clients)
    town.check("3 MB on the output socket")


def connects_without_hello(town: Town) -> None:
    """10,000 peers that say nothing, all there at once; new clients still come in."""
    files = open_files(town.pod)
    with ExitStack() as held:
        for number in range(CONNECTS):
            port = (town.pod.input_port, town.pod.output_port)[number % 2]
            peer = held.enter_context(sockets.create_connection(("127.0.0.1", port), timeout=30))
            peer.sendall(_GREETING + _ready_command(os.urandom(16)))
            if number % 1000 == 999:
                town.check(f"{number + 1} connects")
        newcomer = town.rude()
        newcomer.ping(1)
        newcomer.expect(Pong, ANSWER_SECONDS)
        town.check("10,000 connects without a hello")
    eventually(lambda: open_files(town.pod) < files + 50, "their files are closed", 30.0)


def storm_of_hellos(town: Town) -> None:
    """One peer's HELLOs as fast as they go, with one nonce and with many; nobody reads answers."""
    storm = town.client("storm")
    storm.ready(ANSWER_SECONDS)
    hello = [b"\x80", msgspec.msgpack.encode({"protocol": 1, "protocol_minimum": 1,
             "nonce": storm.nonce, "name": "storm", "layouts": ["C"]})]  # fmt: skip
    for number in range(HELLOS):
        if number % 2:
            storm.input.send_multipart(hello)
        else:
            storm.hello_on(storm.input, nonce=os.urandom(8))
        if number % 2000 == 1999:
            town.check(f"{number + 1} hellos")


def storm_of_strangers(town: Town) -> None:
    """Routing ids without number say half a HELLO each, and stay; slots stay free."""
    with ExitStack() as held:
        for number in range(STRANGERS):
            peer = held.enter_context(
                sockets.create_connection(("127.0.0.1", town.pod.output_port), timeout=30)
            )
            hello = msgspec.msgpack.encode({"nonce": os.urandom(8), "name": f"{number}"})
            peer.sendall(_GREETING + _ready_command(os.urandom(16)) + _frames([b"\x80", hello]))
            if number % 500 == 499:
                town.check(f"{number + 1} half hellos")
        town.rude()
        town.check("half hellos")


def _ready_command(identity: bytes) -> bytes:
    """Return the command that ends a ZMQ handshake of a DEALER."""
    properties = b"".join(
        bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value
        for name, value in ((b"Socket-Type", b"DEALER"), (b"Identity", identity))
    )
    body = b"\x05READY" + properties
    return b"\x04" + bytes([len(body)]) + body


def _frames(frames: list[bytes]) -> bytes:
    """Return a message as it is on the wire."""
    last = len(frames) - 1
    return b"".join(bytes([index < last, len(frame)]) + frame for index, frame in enumerate(frames))


def open_files(pod: Pod) -> int:
    """Return how many files the server has open."""
    return len(os.listdir(f"/proc/{pod.process.pid}/fd"))


ATTACKS: Final[dict[str, Callable[[Town], None]]] = {
    attack.__name__: attack
    for attack in (
        every_message,
        an_id_that_runs,
        an_id_again_and_again,
        requests_of_others,
        slots_of_others,
        calls_that_fail,
        forgeries_on_the_output_socket,
        frames_past_every_limit,
        connects_without_hello,
        storm_of_hellos,
        storm_of_strangers,
    )
}
