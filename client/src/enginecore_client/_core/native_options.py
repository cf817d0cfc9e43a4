"""What a client knows or wants of engines that dial in."""

import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from enginecore_client._core.spans import FAR
from enginecore_client.errors import RequestRejectedError

IN_FLIGHT: Final = 65536
"""Engines without a server in front of them bound nothing; this bounds the client's memory."""


class NativeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a client knows or wants of engines that dial in.

    Attributes:
        vocab_size: token ids from this one on are refused; None where nobody knows it. vLLM's
            READY payload does not say, and a token id past the vocabulary kills its engine.
        hidden_size: width of prompt embeddings, for engines that take them; 0 for token ids only.
        modalities: what multimodal items may be, for engines that take them.
        max_logprobs: the engines' `--max-logprobs`: most log-probabilities a request may ask for,
            -1 for as many as there are tokens; None for what the command of engines that this
            client starts says, else vLLM's 20.
        engine_version: the engines' version as declared, such as "0.32.0". Engines before 0.23 do
            not announce it; what they announce is checked against it.
        model_name: shown in metrics.
        probe_seconds: an engine that says nothing this long, not even when asked, is given up;
            None to wait for ever. No engine is asked while it runs a control call.
        in_flight: most unfinished requests per engine.
        running_facts: what the engines said about themselves (`engine_facts` of the client before
            this one), if they run already: an engine says READY once in its life. They are used
            as soon as they answer.
    """

    vocab_size: int | None = None
    hidden_size: int = 0
    modalities: tuple[str, ...] = ()
    max_logprobs: int | None = None
    engine_version: str = ""
    model_name: str = ""
    probe_seconds: float | None = None
    in_flight: int = IN_FLIGHT
    running_facts: dict[str, Any] | None = None


def check_options(options: NativeOptions) -> None:
    """Refuse options that cannot be.

    Raises:
        RequestRejectedError: `field` names the culprit.
    """
    if not isinstance(options, NativeOptions):
        raise _wrong("", options, "a NativeOptions")
    seconds = options.probe_seconds
    for field, value, low in (
        ("vocab_size", 1 if options.vocab_size is None else options.vocab_size, 1),
        ("hidden_size", options.hidden_size, 0),
        ("max_logprobs", -1 if options.max_logprobs is None else options.max_logprobs, -1),
        ("in_flight", options.in_flight, 1),
    ):
        if type(value) is not int or not low <= value <= sys.maxsize:
            raise _wrong(field, value, f"an integer, {low} or more, of 63 bits")
    if seconds is not None and not (
        isinstance(seconds, int | float) and type(seconds) is not bool and 0 < seconds < FAR
    ):
        raise _wrong("probe_seconds", seconds, "seconds above 0, or None")
    for field, text in (
        ("engine_version", options.engine_version),
        ("model_name", options.model_name),
    ):
        if not isinstance(text, str):
            raise _wrong(field, text, "a string")
    names, facts = options.modalities, options.running_facts
    plain = isinstance(names, Sequence) and not isinstance(names, str | bytes)
    if not plain or not all(isinstance(name, str) for name in names):
        raise _wrong("modalities", names, "a tuple of strings")
    if facts is not None and not isinstance(facts, dict):
        raise _wrong("running_facts", facts, "a dict of client.engine_facts, or None")


def _wrong(field: str, value: Any, allowed: str) -> RequestRejectedError:
    path = f"native.{field}" if field else "native"
    return RequestRejectedError(f"{path}: got {value!r}, allowed: {allowed}", field=path)


class Facts(NamedTuple):
    """What every connection of one client needs to know."""

    client_index: int
    options: NativeOptions
