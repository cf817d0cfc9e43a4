"""What a prompt must keep: token ids, embeddings, and the places of multimodal items."""

from typing import Final

from enginecore_wire.problems import FieldProblem, RequestLimits, outside, too_large
from enginecore_wire.requests import EngineCoreRequest
from enginecore_wire.tensors import Tensor
from enginecore_wire.wording import counted

EMBEDDING_DTYPES: Final = frozenset({"float16", "bfloat16", "float32"})


def check_prompt(
    request: EngineCoreRequest, limits: RequestLimits, *, tokens_checked: bool
) -> FieldProblem | None:
    """Return the first thing wrong with the prompt of `request`, or None.

    Args:
        request: what is about to go to an engine.
        limits: what that engine can take.
        tokens_checked: the token ids are known to be within the vocabulary.
    """
    tokens, embeds = request.prompt_token_ids, request.prompt_embeds
    if embeds is not None or request.prompt_is_token_ids is not None:
        problem = _check_embeds(request, limits)
        if problem:
            return problem
    if tokens is None and embeds is None:
        return outside("prompt_token_ids", "nil", "at least one token id")
    problem = _check_length(request, limits)
    if problem:
        return problem
    if tokens is not None and not tokens_checked:
        low, high = min(tokens), max(tokens)
        if low < 0 or high >= limits.vocab_size:
            bad = low if low < 0 else high
            return outside(
                f"prompt_token_ids[{tokens.index(bad)}]",
                str(bad),
                f"0 to {limits.vocab_size - 1}",
                "use this model's tokenizer",
            )
    return None


def prompt_length(request: EngineCoreRequest) -> int:
    """Return the positions the prompt takes, in tokens."""
    if request.prompt_token_ids is not None:
        return len(request.prompt_token_ids)
    if request.prompt_embeds is not None and request.prompt_embeds.shape:
        return request.prompt_embeds.shape[0]
    return 0


def _check_length(request: EngineCoreRequest, limits: RequestLimits) -> FieldProblem | None:
    length = prompt_length(request)
    name = "prompt_embeds" if request.prompt_token_ids is None else "prompt_token_ids"
    if length == 0:
        return outside(name, "an empty prompt", "at least one token")
    room = 1 if request.pooling_params is None else 0
    if length + room > limits.max_model_len:
        return too_large(
            name,
            counted(length, "token"),
            f"at most {limits.max_model_len - room} (max_model_len {limits.max_model_len})",
            "shorten the prompt",
        )
    if limits.prompt_tokens and length > limits.prompt_tokens:
        return too_large(
            name,
            counted(length, "token"),
            f"at most {limits.prompt_tokens}",
            "shorten the prompt",
        )
    return None


def _check_embeds(request: EngineCoreRequest, limits: RequestLimits) -> FieldProblem | None:
    tokens, embeds, mask = (
        request.prompt_token_ids,
        request.prompt_embeds,
        request.prompt_is_token_ids,
    )
    if embeds is None:
        return outside("prompt_is_token_ids", "a mask", "nil without prompt_embeds")
    if not limits.hidden_size:
        return outside("prompt_embeds", "a tensor", "nil", "this engine takes token ids only")
    problem = _check_embeds_tensor(embeds, limits.hidden_size)
    if problem:
        return problem
    if tokens is not None and len(tokens) != embeds.shape[0]:
        return outside(
            "prompt_token_ids",
            counted(len(tokens), "id"),
            f"{embeds.shape[0]}, as prompt_embeds has",
        )
    if (mask is None) != (tokens is None):
        return outside(
            "prompt_is_token_ids",
            "nil" if mask is None else "a mask",
            "a mask exactly when prompt_token_ids come with prompt_embeds",
        )
    if mask is not None and len(mask) != embeds.shape[0]:
        return outside(
            "prompt_is_token_ids",
            counted(len(mask), "item"),
            f"{embeds.shape[0]}, one per position",
        )
    return None


def _check_embeds_tensor(embeds: Tensor, hidden_size: int) -> FieldProblem | None:
    if embeds.dtype not in EMBEDDING_DTYPES:
        return outside("prompt_embeds", f"dtype {embeds.dtype}", "float16, bfloat16 or float32")
    if len(embeds.shape) != 2 or embeds.shape[1] != hidden_size:
        return outside(
            "prompt_embeds", f"shape {list(embeds.shape)}", f"[prompt tokens, {hidden_size}]"
        )
    return None
