"""What a request does to its own row of logits before a token is drawn."""

from collections import Counter
from math import inf

import torch

from enginecore_torch.sequence import Sequence
from enginecore_wire.requests import SamplingParams


class RowShaper:
    """Applies one request's masks, bias and penalties to its logits, step after step.

    Keeps counts of the tokens seen, so that a step costs as much as there are different
    tokens, not as there are tokens.
    """

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        self._params = sequence.params
        self._allowed = _tensor(self._params.allowed_token_ids)
        self._prompt = set(sequence.tokens[: sequence.prompt_length])
        self._outputs: Counter[int] = Counter()
        self._counted = 0

    @staticmethod
    def is_needed(params: SamplingParams) -> bool:
        """Say whether requests with `params` have anything to apply."""
        return bool(
            params.repetition_penalty != 1.0
            or params.presence_penalty
            or params.frequency_penalty
            or params.allowed_token_ids
            or params.logit_bias
            or params.bad_words_token_ids
            or params.min_tokens
        )

    def apply(self, row: torch.Tensor) -> None:
        """Change `row`, the logits of the next token (float32, shape [vocab_size]), in place."""
        params = self._params
        if self._allowed is not None:
            kept = row[self._allowed]
            row.fill_(-inf)
            row[self._allowed] = kept
        self._ban_words(row)
        if params.logit_bias:
            ids = torch.tensor(list(params.logit_bias), device=row.device)
            row[ids] += torch.tensor(list(params.logit_bias.values()), device=row.device)
        if self._sequence.num_outputs < params.min_tokens:
            banned = set(params.all_stop_token_ids)
            banned.update(params.stop_token_ids or ())
            if params.eos_token_id is not None:
                banned.add(params.eos_token_id)
            if banned:
                row[torch.tensor(sorted(banned), device=row.device)] = -inf
        self._penalise(row)

    def _ban_words(self, row: torch.Tensor) -> None:
        outputs = self._sequence.tokens[self._sequence.prompt_length :]
        for word in self._params.bad_words_token_ids or ():
            start = word[:-1]
            if not start or outputs[-len(start) :] == start:
                row[word[-1]] = -inf

    def _penalise(self, row: torch.Tensor) -> None:
        params = self._params
        self._count()
        if params.repetition_penalty != 1.0:
            seen = torch.tensor(sorted(self._prompt | self._outputs.keys()), device=row.device)
            scores = row[seen]
            penalty = params.repetition_penalty
            row[seen] = torch.where(scores > 0, scores / penalty, scores * penalty)
        if (params.presence_penalty or params.frequency_penalty) and self._outputs:
            ids = torch.tensor(list(self._outputs), device=row.device)
            counts = torch.tensor(list(self._outputs.values()), dtype=row.dtype, device=row.device)
            row[ids] -= params.frequency_penalty * counts + params.presence_penalty

    def _count(self) -> None:
        start = self._sequence.prompt_length + self._counted
        fresh = self._sequence.tokens[start:]
        self._outputs.update(fresh)
        self._counted += len(fresh)


def _tensor(ids: list[int] | None) -> torch.Tensor | None:
    return torch.tensor(sorted(set(ids))) if ids else None
