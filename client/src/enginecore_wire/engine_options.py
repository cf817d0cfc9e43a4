"""What an engine's command line says of it that its READY payload does not."""

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Final

from enginecore_wire.control import DEFAULT_MAX_LOGPROBS

LOGPROBS_OPTION: Final = "--max-logprobs"
"""The option, vLLM's and the built-in engine's, that says how many log-probabilities it gives."""


def max_logprobs(words: Sequence[str]) -> int:
    """Return how many log-probabilities an engine started by `words` gives at most, -1 for all.

    vLLM takes an option with dashes or underscores, its value in the same word or the next; the
    last one counts. What is no number is for the engine to refuse.
    """
    found = DEFAULT_MAX_LOGPROBS
    for word, following in pairwise((*words, "")):
        option, equals, value = word.partition("=")
        if option.replace("_", "-") == LOGPROBS_OPTION:
            with suppress(ValueError):
                found = max(-1, int(value if equals else following))
    return found
