"""What multimodal items of a request must keep: their places in the prompt and their data."""

from typing import Any, Final

from enginecore_wire.multimodal import (
    FieldKind,
    FieldOptions,
    MultiModalFeatureSpec,
    PlaceholderRange,
)
from enginecore_wire.problems import FieldProblem, RequestLimits, outside
from enginecore_wire.requests import EngineCoreRequest
from enginecore_wire.tensors import ITEM_BYTES, Tensor

MAX_NAME: Final = 1024
MAX_DEPTH: Final = 8
"""Lists within lists of one argument; processors nest a few."""

MAX_NUMBER: Final = 2**63 - 1
_SLICE_PARTS: Final = 3


def check_features(request: EngineCoreRequest, limits: RequestLimits) -> FieldProblem | None:
    """Return the first thing wrong with the multimodal items of `request`, or None.

    Args:
        request: its prompt is checked already.
        limits: what the engine can take.
    """
    features = request.mm_features
    if not features:
        return None
    if not limits.modalities:
        return outside(
            "mm_features", f"{len(features)} features", "none", "this engine takes no such items"
        )
    if request.prompt_token_ids is None:
        return outside("prompt_token_ids", "nil", "the token ids that mm_features have places in")
    length, free = len(request.prompt_token_ids), 0
    for index, feature in enumerate(features):
        prefix, place = f"mm_features[{index}]", feature.mm_position
        problem = (
            _check_names(feature, prefix, limits)
            or _check_place(place, f"{prefix}.mm_position", length, free)
            or _check_data(feature, prefix)
        )
        if problem is not None:
            return problem
        free = place.offset + place.length
    return None


def _check_names(
    feature: MultiModalFeatureSpec, prefix: str, limits: RequestLimits
) -> FieldProblem | None:
    if feature.modality not in limits.modalities:
        known = ", ".join(sorted(limits.modalities))
        return outside(f"{prefix}.modality", repr(feature.modality), f"one of {known}")
    for field, name in (("identifier", feature.identifier), ("mm_hash", feature.mm_hash)):
        if name is not None and not 1 <= len(name) <= MAX_NAME:
            return outside(f"{prefix}.{field}", f"{len(name)} characters", f"1 to {MAX_NAME}")
    return None


def _check_place(
    place: PlaceholderRange, prefix: str, length: int, free: int
) -> FieldProblem | None:
    if not free <= place.offset < length:
        return outside(
            f"{prefix}.offset",
            str(place.offset),
            f"{free} to {length - 1}, behind the feature before and inside the prompt",
        )
    room = length - place.offset
    if not 1 <= place.length <= room:
        return outside(f"{prefix}.length", str(place.length), f"1 to {room}, inside the prompt")
    mask = place.is_embed
    if mask is not None and (mask.dtype != "bool" or mask.shape != (place.length,)):
        return outside(
            f"{prefix}.is_embed",
            f"dtype {mask.dtype}, shape {list(mask.shape)}",
            f"dtype bool, shape [{place.length}]",
        )
    return None


def _check_data(feature: MultiModalFeatureSpec, prefix: str) -> FieldProblem | None:
    if feature.data is None:
        if feature.mm_hash is None:
            return outside(f"{prefix}.data", "nil", "nil only with the mm_hash of cached data")
        return None
    if not feature.data:
        return outside(f"{prefix}.data", "an empty map", "at least one argument, or nil")
    for name, item in feature.data.items():
        path = f"{prefix}.data.{name[:MAX_NAME]}"
        if not 1 <= len(name) <= MAX_NAME:
            return outside(f"{prefix}.data", f"a key of {len(name)} characters", f"1 to {MAX_NAME}")
        problem = _check_arrays(item.data, f"{path}.data") or _check_kind(
            item.field, f"{path}.field"
        )
        if problem is not None:
            return problem
    return None


def _check_arrays(data: Any, path: str) -> FieldProblem | None:
    level = [data]
    for _ in range(MAX_DEPTH + 1):
        for node in level:
            if isinstance(node, Tensor) and node.dtype not in ITEM_BYTES:
                return outside(path, f"dtype {node.dtype}", "torch's name of a dtype")
            if type(node) is int and not -MAX_NUMBER - 1 <= node <= MAX_NUMBER:
                return outside(path, str(node), "integers of 64 bits")
        level = [child for node in level if isinstance(node, list) for child in node]
        if not level:
            return None
    return outside(path, "deeper nesting", f"at most {MAX_DEPTH} levels")


def _check_kind(kind: FieldKind, path: str) -> FieldProblem | None:
    options, plain = kind.options, FieldOptions()
    own: tuple[str, ...] = ()
    match kind.name:
        case "batched":
            pass
        case "flat":
            own = ("slices", "dim")
            if not options.slices or not all(map(_is_slice, options.slices)):
                return outside(f"{path}.slices", _short(options.slices), "[[start, stop, step], …]")
            if abs(options.dim) > MAX_DEPTH * MAX_DEPTH:
                return outside(f"{path}.dim", str(options.dim), "a dimension of the tensor")
        case "shared":
            own = ("batch_size",)
            if options.batch_size is None or not 1 <= options.batch_size <= MAX_NUMBER:
                return outside(f"{path}.batch_size", _short(options.batch_size), "at least 1")
        case _:
            return outside(path, repr(kind.name), "batched, flat or shared")
    for name in ("slices", "dim", "batch_size"):
        value = getattr(options, name)
        if name not in own and value != getattr(plain, name):
            return outside(f"{path}.{name}", _short(value), f"nothing for the kind {kind.name}")
    return None


def _is_slice(value: Any) -> bool:
    """Say whether a value is a slice, or a list with one slice per dimension."""
    if not isinstance(value, list) or not value:
        return False
    if all(isinstance(part, list) for part in value):
        return all(_is_plain_slice(part) for part in value)
    return _is_plain_slice(value)


def _is_plain_slice(value: list[Any]) -> bool:
    return len(value) == _SLICE_PARTS and all(
        part is None or (type(part) is int and abs(part) <= MAX_NUMBER) for part in value
    )


def _short(value: Any) -> str:
    return "nil" if value is None else repr(value)[:80]
