"""What one call of `generate` asks of engines: a request per sequence, and its text.

Engines know neither n > 1 nor strings: the client sends one request per sequence, turns tokens
into text as they come, and aborts a sequence whose text reached a stop string.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Items
from typing import Any, Final, Protocol

import msgspec

from enginecore_client._core.admission import check_types, mistyped, refuse_text
from enginecore_client._core.books import RequestRecord
from enginecore_client._faces.outputs import GeneratedOutput, generated
from enginecore_client.errors import RequestRejectedError
from enginecore_wire.outputs import EngineCoreOutput, FinishReason
from enginecore_wire.requests import EngineCoreRequest, OutputKind, SamplingParams
from enginecore_wire.sampling_rules import SEED_MAXIMUM

MAX_SEQUENCES: Final = 16384
"""Most sequences of one request, as in vLLM."""

GREEDY_BELOW: Final = 1e-5
"""Temperatures that vLLM takes for 0."""

NO_SEED: Final = -1
"""A seed that vLLM takes for none."""


class TextReader(Protocol):
    """Turns one sequence's tokens into text; enginecore_client.text.Detokenizer is one.

    `stopped` is the stop string that was reached, or None.
    """

    stopped: str | None

    def push(self, token_ids: Iterable[int]) -> str:
        """Return the text that is certain after these tokens; "" once stopped."""

    def finish(self) -> str:
        """Return what was held back; no more tokens will come."""


class TextTokenizer(Protocol):
    """What a client needs to know about strings; enginecore_client.text.Tokenizer knows it."""

    def complete(self, params: SamplingParams) -> SamplingParams:
        """Return `params` with the token ids an engine needs.

        Raises:
            ValueError: `params` name what has no ids; the text begins with the field's name.
        """

    def reader(self, params: SamplingParams) -> TextReader:
        """Return what turns the tokens of one sequence into text.

        Raises:
            ValueError: `params` ask for what this tokenizer cannot do; the text names the field.
        """


class Mailbox(Protocol):
    """Where a stream takes its outputs from."""

    def put(self, item: Any) -> None:
        """Take an item."""


class Sequence:
    """One sequence of a request, on its way from the core to the stream's mailbox.

    Outputs get their index and text here. A stop string ends the sequence here too, as soon as it
    came, however slow the stream's reader is: what the engine still sends is dropped, and the
    engine is told to forget the request.

    Args:
        index: which sequence, from 0.
        request: what is sent for it.
        mailbox: the stream's.
        reader: for the text; None for outputs without.
        drop: ends a request soon.

    Attributes:
        record: the request's entry in the books, once it was sent.
    """

    def __init__(
        self,
        index: int,
        request: EngineCoreRequest,
        mailbox: Mailbox,
        reader: TextReader | None,
        drop: Callable[[RequestRecord], None],
    ) -> None:
        self.index = index
        self.request = request
        self.record: RequestRecord | None = None
        self._mailbox = mailbox
        self._reader = reader
        self._drop = drop
        self._ended = False

    def put(self, item: Any) -> None:
        """Take an output, an error, or None for an end without a last output."""
        if self._ended:
            return
        if item is None:
            name = self.record.request_id if self.record else self.request.request_id
            item = EngineCoreOutput(name, [], finish_reason=FinishReason.ABORT)
        if isinstance(item, EngineCoreOutput):
            try:
                item = self._generated(item)
            except Exception as error:  # noqa: BLE001 - a tokenizer's fault ends this stream alone
                item = error
                self._stop()
            else:
                self._ended = item.finish_reason is not None
        else:
            self._ended = True
        self._mailbox.put(item)

    def _generated(self, output: EngineCoreOutput) -> GeneratedOutput:
        reader, tokens = self._reader, output.new_token_ids
        if reader is None:
            return generated(output, self.index)
        params = self.request.sampling_params
        assert params is not None
        last = output.finish_reason is not None
        if output.finish_reason is FinishReason.STOP and not params.include_stop_str_in_output:
            tokens = tokens[:-1]  # the token that ended it
        text = reader.push(tokens)
        if last and reader.stopped is None:
            text += reader.finish()
        whole = generated(output, self.index, text)
        if reader.stopped is not None:
            whole.finish_reason, whole.stop_reason = FinishReason.STOP, reader.stopped
            if not last:
                self._stop()
        return whole

    def _stop(self) -> None:
        self._ended = True
        if self.record is not None:
            self.record.stopped = True
            self._drop(self.record)


def build_request(
    prompt: Items[int] | EngineCoreRequest,
    sampling_params: SamplingParams | None,
    request_id: str | None,
    data_parallel_rank: int | None,
    trace_headers: Mapping[str, str] | None,
) -> EngineCoreRequest:
    """Return the request that `generate` stands for.

    Raises:
        RequestRejectedError: an argument is of the wrong type, or says again what a whole
            request says itself.
    """
    if isinstance(prompt, EngineCoreRequest):
        for field, value in (
            ("sampling_params", sampling_params),
            ("request_id", request_id),
            ("data_parallel_rank", data_parallel_rank),
            ("trace_headers", trace_headers),
        ):
            if value is not None:
                raise RequestRejectedError(
                    f"{field}: got {value!r} beside an EngineCoreRequest; set its {field}",
                    field=field,
                )
        return prompt
    if not isinstance(trace_headers, Mapping | None):
        raise RequestRejectedError(
            f"trace_headers: expected a mapping, got {type(trace_headers).__name__}",
            field="trace_headers",
        )
    params = sampling_params or SamplingParams(output_kind=OutputKind.DELTA)
    if not isinstance(params, SamplingParams):
        raise RequestRejectedError(
            f"sampling_params: expected SamplingParams, got {type(params).__name__}",
            field="sampling_params",
        )
    refuse_text(prompt)
    try:
        token_ids = list(prompt)
    except TypeError as error:
        raise RequestRejectedError(
            f"prompt_token_ids: expected token ids, got {type(prompt).__name__}",
            field="prompt_token_ids",
        ) from error
    return EngineCoreRequest(
        request_id="" if request_id is None else request_id,
        prompt_token_ids=token_ids,
        sampling_params=params,
        data_parallel_rank=data_parallel_rank,
        trace_headers=None if trace_headers is None else dict(trace_headers),
    )


def sequences_of(
    request: EngineCoreRequest,
    tokenizer: TextTokenizer | None,
    mailbox: Mailbox,
    drop: Callable[[RequestRecord], None],
) -> list[Sequence]:
    """Return the sequences that a request of `generate` stands for.

    Sequence i gets the seed + i, as in vLLM.

    Raises:
        RequestRejectedError: what it asks of the client itself is wrong or not possible.
    """
    params = request.sampling_params
    if not isinstance(params, SamplingParams):
        check_types(request)
        return [Sequence(0, request, mailbox, None, drop)]
    _check_strings(params, tokenizer)
    count = _count(params)
    if count == 1 and tokenizer is None:
        return [Sequence(0, request, mailbox, None, drop)]
    try:
        if tokenizer is not None:
            params = tokenizer.complete(params)
        readers = [_reader(tokenizer, params) for _ in range(count)]
    except ValueError as error:
        text = f"sampling_params.{error}"
        raise RequestRejectedError(text, field=text.partition(":")[0]) from error
    except TypeError as error:
        wrong = mistyped(request)
        if wrong is None:
            raise  # the tokenizer's own fault
        raise wrong from error
    return [
        Sequence(
            index,
            msgspec.structs.replace(request, sampling_params=_params_of(params, index)),
            mailbox,
            reader,
            drop,
        )
        for index, reader in enumerate(readers)
    ]


def _params_of(params: SamplingParams, index: int) -> SamplingParams:
    if params.n == 1:
        return params
    seed = params.seed
    if type(seed) is int:  # what is wrong with another one is the checks' to say
        seed = None if seed == NO_SEED else seed + index
    return msgspec.structs.replace(params, n=1, seed=seed)


def _reader(tokenizer: TextTokenizer | None, params: SamplingParams) -> TextReader | None:
    return tokenizer.reader(params) if tokenizer is not None and params.detokenize else None


def _count(params: SamplingParams) -> int:
    n, seed, temperature = params.n, params.seed, params.temperature
    if type(n) is int and n == 1:
        return 1
    if type(n) is not int or not 1 <= n <= MAX_SEQUENCES:
        raise _refused("n", n, f"1 to {MAX_SEQUENCES}")
    if n > 1 and isinstance(temperature, int | float) and temperature < GREEDY_BELOW:
        raise _refused("n", n, "1 at temperature 0, where all sequences would be the same")
    if n > 1 and type(seed) is int and seed > SEED_MAXIMUM - n + 1:
        raise _refused("seed", seed, f"at most {SEED_MAXIMUM - n + 1} with n = {n}")
    return n


def _check_strings(params: SamplingParams, tokenizer: TextTokenizer | None) -> None:
    """Refuse strings that nobody here could find or avoid; engines do not."""
    if not params.stop and not params.bad_words:
        return
    for name, value, done in (
        ("stop", params.stop, False),
        ("bad_words", params.bad_words, bool(params.bad_words_token_ids)),
    ):
        strings = [value] if isinstance(value, str) else value
        if strings and not (
            isinstance(strings, list) and all(isinstance(item, str) for item in strings)
        ):
            raise _refused(name, value, "strings")
        if strings and tokenizer is None and not done:
            raise RequestRejectedError(
                f"sampling_params.{name}: got {value!r}, allowed: nil without a tokenizer, because "
                "engines know token ids only; give the client "
                "tokenizer=enginecore_client.text.Tokenizer.load(model)",
                field=f"sampling_params.{name}",
            )


def _refused(name: str, value: object, allowed: str) -> RequestRejectedError:
    return RequestRejectedError(
        f"sampling_params.{name}: got {value!r}, allowed: {allowed}; change it and send the "
        "request again",
        field=f"sampling_params.{name}",
    )
