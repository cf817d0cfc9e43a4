"""One request of generate as sequences: n, seeds, text, stop strings, output kinds."""

import struct
from typing import Any

import pytest

from enginecore_client import FinishReason, OutputKind, RequestRejectedError, SamplingParams
from enginecore_client._core.books import RequestRecord
from enginecore_client._faces.outputs import GeneratedOutput, Whole, generated, joined
from enginecore_client._faces.sequences import Sequence, sequences_of
from enginecore_wire.outputs import (
    EngineCoreEvent,
    EngineCoreOutput,
    EventType,
    Logprobs,
    PrefillStats,
    SamplingMask,
)
from enginecore_wire.requests import EngineCoreRequest
from enginecore_wire.tensors import Tensor
from support.letters import Letters


class Box:
    """Where outputs arrive, and which records were dropped."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.dropped: list[RequestRecord] = []

    def put(self, item: Any) -> None:
        self.items.append(item)

    def split(self, params: SamplingParams, tokenizer: Any = None) -> list[Sequence]:
        request = EngineCoreRequest("r", [1], sampling_params=params)
        sequences = sequences_of(request, tokenizer, self, self.dropped.append)
        for sequence in sequences:
            sequence.record = RequestRecord("r", "r-1", sequence, 1, 0.0)
        return sequences

    @property
    def text(self) -> str:
        return "".join(item.text for item in self.items)


def output(text: str, reason: FinishReason | None = None, **fields: Any) -> EngineCoreOutput:
    return EngineCoreOutput("r", [*text.encode()], finish_reason=reason, **fields)


def params_of(sequences: list[Sequence]) -> list[SamplingParams]:
    found = [sequence.request.sampling_params for sequence in sequences]
    return [params for params in found if params is not None]


@pytest.mark.parametrize(
    ("seed", "seeds"), [(None, [None] * 3), (7, [7, 8, 9]), (-1, [None] * 3), (0, [0, 1, 2])]
)
def test_n_becomes_n_requests_with_seeds_of_their_own(seed, seeds) -> None:
    params = params_of(Box().split(SamplingParams(n=3, seed=seed, max_tokens=5)))
    assert [each.seed for each in params] == seeds
    assert {(each.n, each.max_tokens) for each in params} == {(1, 5)}


@pytest.mark.parametrize(
    ("params", "field", "words"),
    [
        (SamplingParams(n=0), "n", "got 0, allowed: 1 to 16384"),
        (SamplingParams(n=16385), "n", "got 16385"),
        (SamplingParams(n=2.0), "n", "got 2.0"),  # type: ignore[arg-type]
        (SamplingParams(n=True), "n", "got True"),
        (SamplingParams(n=2, temperature=0.0), "n", "1 at temperature 0"),
        (SamplingParams(n=2, seed=2**63 - 1), "seed", f"at most {2**63 - 2} with n = 2"),
        (SamplingParams(stop="x"), "stop", r"got 'x', allowed: nil without a tokenizer.*Tokenizer"),
        (SamplingParams(stop=["x"]), "stop", "Tokenizer.load"),
        (SamplingParams(stop=[5]), "stop", r"got \[5\], allowed: strings"),  # type: ignore[list-item]
        (SamplingParams(bad_words=["x"]), "bad_words", "allowed: nil without a tokenizer"),
        (SamplingParams(bad_words="x"), "bad_words", "allowed: nil without"),  # type: ignore[arg-type]
    ],
)
def test_what_the_client_itself_cannot_do_is_refused(params, field, words) -> None:
    with pytest.raises(RequestRejectedError, match=words) as caught:
        Box().split(params)
    assert caught.value.field == f"sampling_params.{field}"


def test_an_empty_stop_string_is_refused_with_its_field() -> None:
    with pytest.raises(RequestRejectedError, match=r"sampling_params\.stop: an empty") as caught:
        Box().split(SamplingParams(stop=["a", ""]), Letters())
    assert caught.value.field == "sampling_params.stop"


def test_bad_words_whose_ids_are_there_need_no_tokenizer() -> None:
    params = SamplingParams(bad_words=["x"], bad_words_token_ids=[[1]])
    assert params_of(Box().split(params)) == [params]


def test_a_tokenizer_completes_the_parameters() -> None:
    assert params_of(Box().split(SamplingParams(n=2), Letters()))[1].eos_token_id == 0


def test_outputs_carry_the_index_of_their_sequence() -> None:
    box = Box()
    first, second = box.split(SamplingParams(n=2))
    second.put(output("b"))
    first.put(output("a", FinishReason.LENGTH))
    assert [(item.index, item.new_token_ids, item.text) for item in box.items] == [
        (1, [98], ""),
        (0, [97], ""),
    ]


def test_outputs_without_index_and_text_read_as_the_first_without_text() -> None:
    plain = output("a")
    assert (plain.index, plain.text) == (0, "")


STOPS = [
    # stop, include, pieces, text, stop reason
    (["x"], False, ["ab", "cd"], "abcd", None),
    (["bc"], False, ["ab", "cd"], "a", "bc"),
    (["bc"], True, ["ab", "cd"], "abc", "bc"),
    (["bc"], False, ["a", "b", "x"], "abx", None),
    ("cd", False, ["abcdef"], "ab", "cd"),
    (["zz", "d"], False, ["ab", "cd", "ef"], "abc", "d"),
]


@pytest.mark.parametrize(("stop", "include", "pieces", "text", "reason"), STOPS)
def test_stop_strings(stop, include, pieces, text, reason) -> None:
    box = Box()
    params = SamplingParams(stop=stop, include_stop_str_in_output=include)
    (sequence,) = box.split(params, Letters())
    for piece in pieces:
        sequence.put(output(piece))
    sequence.put(output("", FinishReason.LENGTH))
    last = box.items[-1]
    assert (box.text, last.stop_reason) == (text, reason)
    assert last.finish_reason is (FinishReason.STOP if reason else FinishReason.LENGTH)
    assert [item.finish_reason for item in box.items[:-1]] == [None] * (len(box.items) - 1)
    assert box.dropped == ([sequence.record] if reason else [])
    assert sequence.record is not None
    assert sequence.record.stopped is bool(reason)


def test_what_may_become_a_stop_string_is_held_back_and_comes_with_the_end() -> None:
    box = Box()
    (sequence,) = box.split(SamplingParams(stop=["stop"]), Letters())
    sequence.put(output("best"))
    assert box.text == "be"
    sequence.put(output("o", FinishReason.LENGTH))
    assert box.text == "besto"


def test_a_stop_string_in_the_engines_last_output_aborts_nothing() -> None:
    box = Box()
    (sequence,) = box.split(SamplingParams(stop=["b"]), Letters())
    sequence.put(output("ab", FinishReason.LENGTH))
    (last,) = box.items
    assert (last.text, last.finish_reason, last.stop_reason) == ("a", FinishReason.STOP, "b")
    assert box.dropped == []


@pytest.mark.parametrize(("include", "text"), [(False, "a"), (True, "ab")])
def test_the_token_at_which_the_engine_stopped(include: bool, text: str) -> None:
    box = Box()
    params = SamplingParams(include_stop_str_in_output=include, stop_token_ids=[98])
    (sequence,) = box.split(params, Letters())
    sequence.put(output("ab", FinishReason.STOP, stop_reason=98))
    assert (box.text, box.items[-1].new_token_ids) == (text, [97, 98])


@pytest.mark.parametrize(
    ("least", "text"), [(0, ""), (1, ""), (2, "ab"), (3, "ab"), (5, "abab"), (9, "ab" * 4)]
)
def test_stop_strings_within_min_tokens_do_not_count(least: int, text: str) -> None:
    box = Box()
    (sequence,) = box.split(SamplingParams(stop=["ab"], min_tokens=least), Letters())
    for piece in ["a", "b"] * 2 if least < 4 else ["ab"] * 4:
        sequence.put(output(piece))
    sequence.put(output("", FinishReason.LENGTH))
    assert box.text == text


def test_nothing_follows_a_stop_string() -> None:
    box = Box()
    (sequence,) = box.split(SamplingParams(stop=["a"]), Letters())
    for item in (output("a"), output("b"), None, RuntimeError("late")):
        sequence.put(item)
    assert len(box.items) == 1


def test_an_abort_brings_what_was_held_back() -> None:
    box = Box()
    (sequence,) = box.split(SamplingParams(stop=["xyz"]), Letters())
    sequence.put(output("ax"))
    sequence.put(None)
    last = box.items[-1]
    assert (last.text, last.finish_reason, last.request_id) == ("x", FinishReason.ABORT, "r")


def test_without_detokenize_there_is_no_text() -> None:
    box = Box()
    (sequence,) = box.split(SamplingParams(detokenize=False), Letters())
    sequence.put(output("ab"))
    assert box.text == ""


def test_a_type_error_of_the_tokenizer_is_its_own() -> None:
    class Broken(Letters):
        def complete(self, params: SamplingParams) -> SamplingParams:
            raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        Box().split(SamplingParams(), Broken())


def test_a_tokenizer_that_breaks_ends_its_own_sequence() -> None:
    box, letters = Box(), Letters()
    (sequence,) = box.split(SamplingParams(), letters)
    letters.broken = True
    sequence.put(output("a"))
    assert [type(item) for item in box.items] == [KeyError]
    assert box.dropped == [sequence.record]


def _logprobs(positions: int, first: int) -> Logprobs:
    ids = range(first, first + 2 * positions)
    return Logprobs(
        Tensor("<i4", (positions, 2), struct.pack(f"<{2 * positions}i", *ids)),
        Tensor("<f4", (positions, 2), struct.pack(f"<{2 * positions}f", *map(float, ids))),
        Tensor("<i4", (positions,), struct.pack(f"<{positions}i", *range(positions))),
        [0, positions],
    )


def _mask(ids: list[int], offsets: list[int] | None = None) -> SamplingMask:
    bounds = offsets and Tensor("<i4", (len(offsets),), struct.pack(f"<{len(offsets)}i", *offsets))
    return SamplingMask(Tensor("<i4", (len(ids),), struct.pack(f"<{len(ids)}i", *ids)), bounds)


def parts() -> list[GeneratedOutput]:
    """Three outputs of one sequence with everything an engine may send."""
    event = EngineCoreEvent(EventType.QUEUED, 1.0)
    return [
        generated(
            output("a", new_logprobs=_logprobs(1, 0), events=[event], num_nans_in_logits=1,
                   prefill_stats=PrefillStats(3), new_sampling_mask=_mask([5])), 1, "a",
        ),
        generated(
            output("bc", new_logprobs=_logprobs(2, 10), trace_headers={"x": "1"},
                   new_sampling_mask=_mask([6, 7, 8], [0, 1, 3])), 1, "b",
        ),
        generated(
            output("d", FinishReason.STOP, stop_reason="z", events=[event], num_nans_in_logits=2,
                   trace_headers={"x": "2"}), 1, "cd",
        ),
    ]  # fmt: skip


def test_joined_outputs_hold_everything() -> None:
    whole = joined(parts())
    assert (whole.new_token_ids, whole.text, whole.index) == ([*b"abcd"], "abcd", 1)
    assert (whole.finish_reason, whole.stop_reason) == (FinishReason.STOP, "z")
    assert whole.new_logprobs is not None
    assert whole.new_logprobs.token_ids.tolist() == [[0, 1], [10, 11], [12, 13]]
    assert whole.new_logprobs.values.tolist() == [[0.0, 1.0], [10.0, 11.0], [12.0, 13.0]]
    assert whole.new_logprobs.ranks.tolist() == [0, 0, 1]
    assert whole.new_logprobs.cumulative is None
    assert whole.new_sampling_mask is not None
    assert whole.new_sampling_mask.token_ids.tolist() == [5, 6, 7, 8]
    assert whole.new_sampling_mask.offsets is not None
    assert whole.new_sampling_mask.offsets.tolist() == [0, 1, 2, 4]
    assert whole.events is not None
    assert (len(whole.events), whole.num_nans_in_logits) == (2, 3)
    assert (whole.prefill_stats, whole.trace_headers) == (PrefillStats(3), {"x": "2"})


def test_the_kinds_of_output() -> None:
    everything, final = Whole(OutputKind.CUMULATIVE), Whole(OutputKind.FINAL_ONLY)
    cumulative = [everything.add(part) for part in parts()]
    assert [part and part.text for part in cumulative] == ["a", "ab", "abcd"]
    assert [part and part.new_token_ids for part in cumulative] == [[97], [*b"abc"], [*b"abcd"]]
    assert cumulative[-1] == joined(parts())
    only = [final.add(part) for part in parts()]
    assert only == [None, None, joined(parts())]


def test_an_output_given_out_is_not_changed_later() -> None:
    whole = Whole(OutputKind.CUMULATIVE)
    first = whole.add(parts()[0])
    whole.add(parts()[1])
    assert first is not None
    assert (first.text, first.new_token_ids) == ("a", [97])


def test_arrays_that_do_not_fit_are_told() -> None:
    one, two, _ = parts()
    two.new_logprobs = Logprobs(*[Tensor("<i8", (1,), bytes(8))] * 3)
    with pytest.raises(ValueError, match="do not fit together"):
        joined([one, two])
