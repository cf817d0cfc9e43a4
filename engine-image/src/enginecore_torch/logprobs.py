"""Log-probabilities of tokens, in the shapes that travel."""

import torch

from enginecore_wire.outputs import Logprobs, PromptLogprobs
from enginecore_wire.tensors import Tensor

_NUMPY = ("<i4", "<f4")
_TORCH = ("int32", "float32")


def sampled_logprobs(logprobs: torch.Tensor, token: int, count: int) -> Logprobs:
    """Return one position's log-probabilities, named as numpy arrays.

    Args:
        logprobs: of all tokens, shape [vocab_size].
        token: the one that was sampled.
        count: how many of the most likely follow it, -1 for all.
    """
    tokens = torch.tensor([token], device=logprobs.device)
    return Logprobs(*_logprobs(logprobs.unsqueeze(0), tokens, count, _NUMPY))


def prompt_logprobs(logprobs: torch.Tensor, tokens: torch.Tensor, count: int) -> PromptLogprobs:
    """Return log-probabilities of a prompt's tokens after the first, named as torch tensors.

    Args:
        logprobs: of all tokens, shape [positions, vocab_size].
        tokens: the prompt's tokens at these positions, shape [positions].
        count: how many of the most likely follow each, -1 for all.
    """
    return PromptLogprobs(*_logprobs(logprobs, tokens, count, _TORCH))


def join(parts: list[PromptLogprobs]) -> PromptLogprobs:
    """Return the positions of all `parts`, in order."""
    if len(parts) == 1:
        return parts[0]
    return PromptLogprobs(
        _concatenate([part.token_ids for part in parts]),
        _concatenate([part.values for part in parts]),
        _concatenate([part.ranks for part in parts]),
    )


def _logprobs(
    logprobs: torch.Tensor, tokens: torch.Tensor, count: int, names: tuple[str, str]
) -> tuple[Tensor, Tensor, Tensor]:
    own = logprobs.gather(1, tokens.unsqueeze(1))
    ranks = (logprobs > own).sum(dim=1) + 1
    ids, values = tokens.unsqueeze(1), own
    if count:
        top = logprobs.topk(count if count > 0 else logprobs.shape[1], dim=1)
        ids = torch.cat((ids, top.indices), dim=1)
        values = torch.cat((values, top.values), dim=1)
    integer, real = names
    return (
        _wire(ids.to(torch.int32), integer),
        _wire(values, real),
        _wire(ranks.to(torch.int32), integer),
    )


def _wire(values: torch.Tensor, dtype: str) -> Tensor:
    array = values.contiguous().cpu().numpy()
    return Tensor(dtype, tuple(array.shape), array.tobytes())


def _concatenate(parts: list[Tensor]) -> Tensor:
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    return Tensor(parts[0].dtype, shape, b"".join(part.data for part in parts))
