"""Run in the vLLM environment: decode messages with vLLM's own decoder and print what it made of
them, as one line of JSON.

Standard input is `{name: [kind, [frame, …]]}`, frames in base64; kind is `request`, `outputs` or
`arrays`. An array is told as [class, dtype, shape, SHA-256 of its bytes], a message as its fields.
"""

import base64
import dataclasses
import enum
import hashlib
import json
import sys
from typing import Any

import msgspec
import numpy as np
import torch
from vllm.multimodal.inputs import MultiModalFieldElem, MultiModalKwargsItem
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.serial_utils import MsgpackDecoder

KINDS: dict[str, Any] = {
    "request": EngineCoreRequest,
    "outputs": EngineCoreOutputs,
    "arrays": list[torch.Tensor],
    "numpy arrays": list[np.ndarray],
}


def plain(node: Any) -> Any:
    """Return a decoded value as JSON can show it."""
    if isinstance(node, torch.Tensor):
        data = node.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return ["torch", str(node.dtype).removeprefix("torch."), list(node.shape), digest(data)]
    if isinstance(node, np.ndarray):
        return ["numpy", node.dtype.str, list(node.shape), digest(node.tobytes())]
    if isinstance(node, MultiModalKwargsItem):
        return {key: plain(element) for key, element in node.items()}
    if isinstance(node, MultiModalFieldElem):
        options = {
            f.name: plain(getattr(node.field, f.name)) for f in dataclasses.fields(node.field)
        }
        return {"data": plain(node.data), "field": type(node.field).__name__, **options}
    if isinstance(node, slice):
        return [node.start, node.stop, node.step]
    if isinstance(node, msgspec.Struct):
        return {name: plain(getattr(node, name)) for name in node.__struct_fields__}
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        return {f.name: plain(getattr(node, f.name)) for f in dataclasses.fields(node)}
    if isinstance(node, dict):
        return {str(key): plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple | set):
        return [plain(item) for item in node]
    return node.value if isinstance(node, enum.Enum) else node


def digest(data: bytes) -> str:
    """Return the SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def main() -> None:
    """Decode everything on standard input."""
    told = {}
    for name, (kind, frames) in json.load(sys.stdin).items():
        decoder = MsgpackDecoder(KINDS[kind])
        told[name] = plain(decoder.decode([base64.b64decode(frame) for frame in frames]))
    print(json.dumps(told))


if __name__ == "__main__":
    main()
