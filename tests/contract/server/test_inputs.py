"""Embeddings and multimodal items reach an engine that takes them; the server holds them, too."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from enginecore_wire.control import Reject
from enginecore_wire.multimodal import (
    FieldKind,
    FieldOptions,
    MultiModalFeatureSpec,
    MultiModalItem,
    PlaceholderRange,
)
from enginecore_wire.outputs import FinishReason
from enginecore_wire.tensors import Tensor
from support.pod import Pod, stub_config
from support.raw_client import RawClient, request

WIDTH = 8
PIXELS = Tensor("float32", (4, 40), bytes(4 * 4 * 40))
CONFIG = {"vocab_size": 1000, "hidden_size": WIDTH, "vision_config": {"depth": 1}}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[RawClient]:
    """A client without checks of its own, of a pod whose engine takes everything."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    config = stub_config("--enable-prompt-embeds")
    model = msgspec.structs.replace(config.model, path=str(tmp_path), vocab_size=None)
    with Pod(msgspec.structs.replace(config, model=model)) as pod:
        pod.wait_ready()
        with RawClient(pod.input_port, pod.output_port) as raw:
            yield raw


def embeds(rows: int = 3, width: int = WIDTH, dtype: str = "float32") -> Tensor:
    size = rows * width * (8 if "64" in dtype else 4)
    return Tensor(dtype, (rows, width), bytes(size))


def feature(data: Any = PIXELS, **changes: Any) -> MultiModalFeatureSpec:
    kind = changes.pop("kind", FieldKind.batched())
    given = {"data": {"pixels": MultiModalItem(data, kind)}, "modality": "image",
             "identifier": "i", "mm_position": PlaceholderRange(0, 2), "mm_hash": "h"}  # fmt: skip
    return MultiModalFeatureSpec(**(given | changes))


GOOD: dict[str, dict[str, Any]] = {
    "embeddings alone": {"prompt_token_ids": None, "prompt_embeds": embeds()},
    "large embeddings": {"prompt_token_ids": None, "prompt_embeds": embeds(500)},
    "embeddings and ids": {"prompt_embeds": embeds(), "prompt_is_token_ids": [True, False, True]},
    "an image": {"mm_features": [feature()]},
    "a cached image": {"mm_features": [feature(data=None)]},
}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "width": ({"prompt_token_ids": None, "prompt_embeds": embeds(3, WIDTH + 1)}, "prompt_embeds"),
    "dtype": ({"prompt_token_ids": None, "prompt_embeds": embeds(dtype="int64")}, "prompt_embeds"),
    "length": ({"prompt_token_ids": None, "prompt_embeds": embeds(2048)}, "prompt_embeds"),
    "ids": ({"prompt_embeds": embeds(2), "prompt_is_token_ids": [True]}, "prompt_token_ids"),
    "mask": ({"prompt_embeds": embeds()}, "prompt_is_token_ids"),
    "modality": ({"mm_features": [feature(modality="audio")]}, "mm_features[0].modality"),
    "place": ({"mm_features": [feature(mm_position=PlaceholderRange(2, 2))]},
              "mm_features[0].mm_position.length"),
    "numpy's dtype": ({"mm_features": [feature(Tensor("<f4", (1,), bytes(4)))]},
                      "mm_features[0].data.pixels.data"),
    "kind": ({"mm_features": [feature(kind=FieldKind("flat", FieldOptions()))]},
             "mm_features[0].data.pixels.field.slices"),
}  # fmt: skip


def test_what_the_engine_takes_reaches_it_and_what_would_harm_it_does_not(
    client: RawClient,
) -> None:
    ready = client.ready()
    assert (ready.hidden_size, ready.modalities) == (WIDTH, ("image", "video"))
    for name, fields in GOOD.items():
        client.add(request(name, **fields, max_tokens=2))
        tokens, reason = client.tokens(name)
        assert (len(tokens), reason) == (2, FinishReason.LENGTH), name
    for name, (fields, field) in BAD.items():
        client.add(request(name, **fields))
        reject = client.expect(Reject)
        assert (reject.request_id, reject.field) == (name, field)
        assert reject.message.startswith(f"{field}: got ")
    names = [what for kind, what in client.journal(1) if kind == "add"]
    assert names == list(GOOD)


def test_an_engine_without_them_takes_none(make_pod: Any, connect: Any) -> None:
    plain = connect(make_pod())
    ready = plain.ready()
    assert (ready.hidden_size, ready.modalities) == (0, ())
    for name, field in (("embeddings alone", "prompt_embeds"), ("an image", "mm_features")):
        plain.add(request(name, **GOOD[name]))
        assert plain.expect(Reject).field == field
