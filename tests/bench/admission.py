"""What the engine server's check of a request costs: an ADD of 1,024 tokens, decoded, every field
held to the engine's limits, judged.

Seconds are the processor's, the best of several rounds. The floor reads the same bytes and checks
nothing.
"""

import timeit
from collections.abc import Callable
from random import Random

import msgspec

from enginecore_server.adapters import AdapterBook
from enginecore_server.admission import Add, Admission
from enginecore_wire.codec import MsgpackEncoder
from enginecore_wire.control import Limits, Phase
from enginecore_wire.problems import RequestLimits
from enginecore_wire.requests import EngineCoreRequest, SamplingParams
from support.measures import Measure

VOCABULARY = 49152
CONTEXT = 8192
TOKENS = 1024
SLOT = 3
ROUNDS = 20
CALLS = 500
BAR_US = 25.0


def body() -> bytes:
    """Return an ADD as a front end sends it."""
    tokens = Random(1).sample(range(VOCABULARY), TOKENS)
    request = EngineCoreRequest(
        "request-000001-0a1b2c3d",
        tokens,
        sampling_params=SamplingParams(max_tokens=100, temperature=0.7, top_p=0.9),
        arrival_time=1.7e9,
        client_index=SLOT,
        external_req_id="request-000001",
    )
    return bytes(MsgpackEncoder().encode(request)[0])


def main() -> None:
    """Measure and print."""
    limits = RequestLimits(vocab_size=VOCABULARY, max_model_len=CONTEXT)
    admission = Admission(limits, Limits(), lambda _name: False, AdapterBook())
    sent = body()
    admitted = admission.add(sent, (), SLOT, 0, 0, Phase.READY)
    assert isinstance(admitted, Add), admitted
    checked = microseconds(lambda: admission.add(sent, (), SLOT, 0, 0, Phase.READY))
    floor = microseconds(lambda: msgspec.msgpack.decode(sent))
    Measure(f"validated ADD of {TOKENS} tokens", checked, "us", BAR_US).print()
    Measure("the same bytes read, nothing checked", floor, "us").print()


def microseconds(work: Callable[[], object]) -> float:
    """Return what a call takes at best."""
    rounds = timeit.repeat(work, number=CALLS, repeat=ROUNDS)
    return min(rounds) / CALLS * 1e6


if __name__ == "__main__":
    main()
