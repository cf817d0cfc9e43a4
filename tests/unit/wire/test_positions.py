"""The tables of positions against the fields of every release (tests/golden/record_releases.py)."""

import json
from pathlib import Path

import msgspec
import pytest

from enginecore_wire import handshake, multimodal, outputs
from enginecore_wire.codec import MsgpackDecoder
from enginecore_wire.dialects import Dialect, dialect_of
from enginecore_wire.layouts import NEWEST, release_of
from enginecore_wire.positions import LOGPROBS_AS_ARRAYS, MULTIMODAL

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "vllm-releases.json"
DOCUMENT = json.loads(GOLDEN.read_text())
RELEASES = DOCUMENT["releases"]
OURS = {"new_prompt_logprobs_tensors": "new_prompt_logprobs"}
"""Names of our own where the wire shows positions only."""


def _fields(name, release):
    """Return the fields of one of vLLM's classes in a release."""
    found = DOCUMENT["fields"][name]
    begun = [start for start in found if RELEASES.index(start) <= RELEASES.index(release)]
    return tuple(OURS.get(field, field) for field in found[begun[-1]]) if begun else ()


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("name", "table"), [("PoolingParams", "pooling"), ("LoRARequest", "lora")])
def test_parts_of_requests_have_the_releases_positions(name, table, release):
    theirs = _fields(name, release)
    if release == "0.11.0":
        theirs = tuple("use_activation" if field == "activation" else field for field in theirs)
    assert getattr(dialect_of(release), table) == theirs


@pytest.mark.parametrize("release", RELEASES)
def test_requests_have_the_releases_positions(release):
    ours, theirs = dialect_of(release).request, _fields("EngineCoreRequest", release)
    assert ours == theirs[: len(ours)]
    assert ours[-1] == "trace_headers" or ours == theirs


@pytest.mark.parametrize("release", RELEASES)
def test_outputs_have_the_releases_positions(release):
    """A release may have fewer, which then take their defaults, but none elsewhere."""
    ours, theirs = dialect_of(release).output, _fields("EngineCoreOutput", release)
    assert ours[: len(theirs)] == theirs


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("name", "kind"),
    [("EngineCoreOutputs", outputs.EngineCoreOutputs), ("UtilityOutput", outputs.UtilityOutput)],
)
def test_envelopes_have_one_order_in_every_release(name, kind, release):
    theirs = _fields(name, release)
    assert kind.__struct_fields__[: len(theirs)] == theirs


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("EngineCoreEvent", outputs.EngineCoreEvent),
        ("PrefillStats", outputs.PrefillStats),
        ("EngineCoreReadyResponse", handshake.ReadyPayload),
        ("MultiModalFeatureSpec", multimodal.MultiModalFeatureSpec),
        ("PlaceholderRange", multimodal.PlaceholderRange),
    ],
)
def test_maps_have_names_of_every_release(name, kind, release):
    assert set(_fields(name, release)) <= set(kind.__struct_fields__)


@pytest.mark.parametrize("release", RELEASES)
def test_reasons_to_finish_have_one_order_in_every_release(release):
    theirs = _fields("FinishReason", release)
    assert tuple(reason.name for reason in outputs.FinishReason)[: len(theirs)] == theirs


@pytest.mark.parametrize("release", RELEASES)
def test_data_of_items_is_a_map_of_arguments_since(release):
    keyed = _fields("MultiModalFieldElem", release) == ("data", "field")
    assert keyed == (release_of(release) >= MULTIMODAL)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("name", "kind"),
    [("LogprobsLists", outputs.Logprobs), ("LogprobsTensors", outputs.PromptLogprobs)],
)
def test_log_probabilities_only_grew(name, kind, release):
    assert len(_fields(name, release)) <= len(kind.__struct_fields__)


def test_log_probabilities_became_arrays_with_their_fourth_field():
    first = next(iter(DOCUMENT["fields"]["LogprobsLists"]))
    changed = [r for r in DOCUMENT["fields"]["LogprobsLists"] if r != first]
    assert [release_of(release) for release in changed] == [LOGPROBS_AS_ARRAYS]


def test_newest_release_is_the_one_this_package_was_made_for():
    assert dialect_of(RELEASES[-1]) == Dialect(NEWEST)


@pytest.mark.parametrize("release", [r for r in RELEASES if release_of(r) >= (0, 20)])
def test_ready_payload_of_every_release_that_has_one_is_read(release):
    defaults = handshake.ReadyPayload(2048, 7)
    names = _fields("EngineCoreReadyResponse", release)
    tree = {name: getattr(defaults, name) for name in names}
    body = msgspec.msgpack.encode(tree)
    assert MsgpackDecoder(handshake.ReadyPayload).decode(body) == defaults
