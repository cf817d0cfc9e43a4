"""Multimodal items that would harm an engine are refused, each with the path of its field."""

from typing import Any

import pytest

from enginecore_wire.multimodal import (
    FieldKind,
    FieldOptions,
    MultiModalFeatureSpec,
    MultiModalItem,
    PlaceholderRange,
)
from enginecore_wire.multimodal_rules import check_features
from enginecore_wire.problems import RequestLimits
from enginecore_wire.requests import EngineCoreRequest, SamplingParams
from enginecore_wire.tensors import Tensor
from enginecore_wire.validation import check_request

LIMITS = RequestLimits(
    vocab_size=10, max_model_len=64, hidden_size=2, modalities=frozenset({"image", "audio"})
)
PIXELS = Tensor("float32", (1, 2), bytes(8))
BATCHED = FieldKind.batched()


def place(offset: int = 0, length: int = 2, mask: Tensor | None = None) -> PlaceholderRange:
    return PlaceholderRange(offset, length, mask)


def feature(**changes: Any) -> MultiModalFeatureSpec:
    given = {
        "data": {"pixels": MultiModalItem(PIXELS, BATCHED)},
        "modality": "image",
        "identifier": "i",
        "mm_position": place(),
        "mm_hash": "h",
    }
    return MultiModalFeatureSpec(**(given | changes))


def request(*features: MultiModalFeatureSpec, **changes: Any) -> EngineCoreRequest:
    given = {"prompt_token_ids": [1] * 8, "sampling_params": SamplingParams()}
    return EngineCoreRequest("r", mm_features=list(features), **(given | changes))


def item(data: Any, kind: FieldKind = BATCHED) -> MultiModalFeatureSpec:
    return feature(data={"pixels": MultiModalItem(data, kind)})


def kind(name: str, **options: Any) -> MultiModalFeatureSpec:
    return item(PIXELS, FieldKind(name, FieldOptions(**options)))


def nested(levels: int) -> Any:
    return [nested(levels - 1)] if levels else 1


GOOD = [
    request(feature()),
    request(feature(), feature(mm_position=place(2, 6), modality="audio")),
    request(feature(mm_position=place(6, 2, Tensor("bool", (2,), b"\1\0")))),
    request(feature(data=None)),
    request(feature(mm_hash=None)),
    request(item(None)),
    request(item([PIXELS, [1, 2.5]])),
    request(item(nested(8))),
    request(item(-(2**63))),
    request(kind("flat", slices=[[0, 1, None]], dim=1)),
    request(kind("flat", slices=[[[0, 1, None], [None, None, 2]]])),
    request(kind("shared", batch_size=1, keep_on_cpu=True)),
    request(),
]


@pytest.mark.parametrize("request_", GOOD)
def test_accepted(request_: EngineCoreRequest) -> None:
    assert check_features(request_, LIMITS) is None
    assert check_request(request_, LIMITS) is None


F = "mm_features[0]"
D = f"{F}.data.pixels"
BAD = [
    (request(feature(modality="smell")), f"{F}.modality", "one of audio, image"),
    (request(feature(identifier="")), f"{F}.identifier", "0 characters"),
    (request(feature(mm_hash="x" * 1025)), f"{F}.mm_hash", "1 to 1024"),
    (request(feature(mm_position=place(-1))), f"{F}.mm_position.offset", "got -1"),
    (request(feature(mm_position=place(8))), f"{F}.mm_position.offset", "0 to 7"),
    (request(feature(mm_position=place(0, 0))), f"{F}.mm_position.length", "1 to 8"),
    (request(feature(mm_position=place(6, 3))), f"{F}.mm_position.length", "1 to 2"),
    (request(feature(), feature(mm_position=place(1))), "mm_features[1].mm_position.offset",
     "2 to 7"),
    (request(feature(mm_position=place(0, 2, Tensor("bool", (3,), bytes(3))))),
     f"{F}.mm_position.is_embed", "shape [3], allowed: dtype bool, shape [2]"),
    (request(feature(mm_position=place(0, 2, Tensor("uint8", (2,), bytes(2))))),
     f"{F}.mm_position.is_embed", "dtype uint8"),
    (request(feature(data=None, mm_hash=None)), f"{F}.data", "mm_hash"),
    (request(feature(data={})), f"{F}.data", "an empty map"),
    (request(feature(data={"": MultiModalItem(PIXELS, BATCHED)})), f"{F}.data", "0 characters"),
    (request(item(Tensor("<f4", (1,), bytes(4)))), f"{D}.data", "dtype <f4"),
    (request(item([[Tensor("|b1", (1,), bytes(1))]])), f"{D}.data", "dtype |b1"),
    (request(item(2**63)), f"{D}.data", "64 bits"),
    (request(item(nested(9))), f"{D}.data", "at most 8 levels"),
    (request(kind("round")), f"{D}.field", "batched, flat or shared"),
    (request(kind("flat")), f"{D}.field.slices", "got nil"),
    (request(kind("flat", slices=[[0, 1]])), f"{D}.field.slices", "start, stop, step"),
    (request(kind("flat", slices=[[0, "x", 1]])), f"{D}.field.slices", "start, stop, step"),
    (request(kind("flat", slices=[[[[0, 1, 1]]]])), f"{D}.field.slices", "start, stop, step"),
    (request(kind("flat", slices=[[0, 1, 1]], dim=99)), f"{D}.field.dim", "got 99"),
    (request(kind("shared")), f"{D}.field.batch_size", "got nil"),
    (request(kind("shared", batch_size=0)), f"{D}.field.batch_size", "got 0"),
    (request(kind("batched", batch_size=1)), f"{D}.field.batch_size", "nothing for the kind"),
    (request(kind("shared", batch_size=1, dim=1)), f"{D}.field.dim", "nothing for the kind"),
    (request(feature(), prompt_token_ids=None, prompt_embeds=Tensor("float32", (8, 2), bytes(64))),
     "prompt_token_ids", "have places in"),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "field", "words"), BAD)
def test_refused(request_: EngineCoreRequest, field: str, words: str) -> None:
    problem = check_request(request_, LIMITS)
    assert problem is not None
    assert problem.field == field
    assert problem.message.startswith(f"{field}: got ")
    assert words in problem.message


def test_an_engine_without_modalities_takes_none() -> None:
    problem = check_request(request(feature()), RequestLimits(vocab_size=10, max_model_len=64))
    assert problem is not None
    assert problem.message.startswith("mm_features: got 1 features, allowed: none")
