"""Whatever bytes come, in whatever frames: a message is read or refused, at once and for little
memory. `make fuzz` goes on where these examples end."""

import time
import tracemalloc
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginecore_wire.codec import MsgpackDecoder
from enginecore_wire.outputs import EngineCoreOutputs
from fuzz.bombs import BOMBS, HUGE
from fuzz.inputs import join, split
from fuzz.seeds import seeds
from fuzz.targets import TARGETS

SETTINGS = settings(deadline=None, derandomize=True, database=None, max_examples=150)
SEEDS = seeds()
NAMES = list(TARGETS)
HEADERS = st.sampled_from(
    [
        *HUGE,
        b"\xc7\x03\x01",
        b"\xd4\x01",
        b"\xd4\x02",
        b"\xd6\xff",
        b"\x91" * 2000,
        b"\x81\xc0" * 700,
    ]
)
EDITS = st.lists(
    st.tuples(st.integers(0, 4000), st.integers(0, 12), st.one_of(st.binary(max_size=9), HEADERS)),
    min_size=1,
    max_size=5,
)
SECONDS = 0.5
"""Processor time one message may take in one decoder."""


def _try(name, frames):
    with suppress(msgspec.DecodeError):
        TARGETS[name](frames)


@pytest.mark.parametrize(
    ("name", "frames"), SEEDS, ids=[f"{n}-{s[0]}" for n, s in enumerate(SEEDS)]
)
def test_valid_message_is_read(name, frames):
    if frames == [b"ENGINE_CORE_DEAD"]:
        with pytest.raises(msgspec.DecodeError):
            TARGETS[name](frames)
    else:
        TARGETS[name](frames)


@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(frames=st.lists(st.binary(max_size=120), min_size=1, max_size=3))
def test_random_bytes(name, frames):
    _try(name, frames)


@settings(SETTINGS, max_examples=2500)
@given(seed=st.sampled_from(SEEDS), edits=EDITS)
def test_changed_messages(seed, edits):
    name, frames = seed
    damaged = [bytearray(frame) for frame in frames]
    for place, length, put in edits:
        frame = damaged[place % len(damaged)]
        start = place % (len(frame) + 1)
        frame[start : start + length] = put
    _try(name, [bytes(frame) for frame in damaged])


@settings(SETTINGS, max_examples=600)
@given(seed=st.sampled_from(SEEDS), name=st.sampled_from(NAMES), cut=st.integers(0, 4000))
def test_message_cut_short_or_meant_for_another(seed, name, cut):
    kind, (body, *aux) = seed
    _try(kind, [body[: cut % (len(body) + 1)], *aux])
    _try(name, [body, *aux])


@settings(SETTINGS, max_examples=600)
@given(
    seed=st.sampled_from([seed for seed in SEEDS if len(seed[1]) > 1]),
    order=st.lists(st.integers(0, 5), max_size=6),
    extra=st.binary(max_size=300),
)
def test_frames_missing_swapped_and_added(seed, order, extra):
    name, (body, *aux) = seed
    pool = [*aux, extra, b""]
    _try(name, [body, *(pool[place % len(pool)] for place in order)])


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "within"])
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_small_message_costs_little(bomb, inside):
    body = b"\x9a\xa1r\x91\x01\x90\x80\xc0\x00\x80" + bomb if inside else bomb
    for name in NAMES:
        started = time.process_time()
        _try(name, [body, b""])
        assert time.process_time() - started < SECONDS
    tracemalloc.start()
    try:
        for name in NAMES:
            _try(name, [body, b""])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 * len(body) + (1 << 20)


@settings(SETTINGS, max_examples=200)
@given(edits=EDITS)
def test_one_bad_message_harms_one_message(edits):
    """The same decoder reads the next one as if the bad one had never been."""
    outputs = [frames for name, frames in SEEDS if name == "outputs" and len(frames) > 1]
    decoder, fresh = MsgpackDecoder(EngineCoreOutputs), MsgpackDecoder(EngineCoreOutputs)
    damaged = bytearray(outputs[0][0])
    for place, length, put in edits:
        start = place % len(damaged)
        damaged[start : start + length] = put
    for body, *aux in outputs:
        with suppress(msgspec.DecodeError):
            decoder.decode(bytes(damaged), aux)
        with suppress(msgspec.DecodeError):
            decoder.decode(b"\x91" * 5000)
        assert decoder.decode(body, aux) == fresh.decode(body, aux)


@pytest.mark.parametrize(("name", "frames"), SEEDS[::7])
def test_fuzzers_input_is_taken_apart_as_it_was_put_together(name, frames):
    assert split(join(name, frames)) == (name, frames)


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x00\x04", b"\x01\x02\xff\xff\x01\x00body"])
def test_any_bytes_are_an_input(data):
    name, frames = split(data)
    assert name in TARGETS
    assert frames
