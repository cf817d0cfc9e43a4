"""A choice goes to xgrammar's engines as a grammar, which is what vLLM's front end makes of it."""

from typing import Any

import msgspec
import pytest

from enginecore_client import RequestRejectedError
from enginecore_client._core.admission import Admission
from enginecore_client._core.grammar import choice_grammar
from enginecore_wire.control import Ready
from enginecore_wire.requests import EngineCoreRequest, SamplingParams, StructuredOutputs

FIELD = "sampling_params.structured_outputs"

GRAMMARS = [
    (["yes"], r'root ::= "yes"'),
    (["yes", "no"], r'root ::= "yes" | "no"'),
    (['say "a"'], r'root ::= "say \"a\""'),
    (["a\\b", "\\n"], r'root ::= "a\\b" | "\\n"'),
    (["a\nb\r\t"], r'root ::= "a\U0000000ab\U0000000d\U00000009"'),
    (["\0\x7f\u2028"], r'root ::= "\U00000000\U0000007f\U00002028"'),
    (["Zürich", "日本", "😀"], 'root ::= "Zürich" | "日本" | "😀"'),
    ([" a | b ", "# c", "(x)"], 'root ::= " a | b " | "# c" | "(x)"'),
]
UNCHANGED = [
    StructuredOutputs(choice=["a", "b"], backend="guidance"),
    StructuredOutputs(choice=["a", "b"], backend="outlines"),
    StructuredOutputs(json={"type": "object"}, backend="xgrammar"),
    StructuredOutputs(regex="a+", backend="xgrammar"),
    StructuredOutputs(grammar='root ::= "a"', backend="xgrammar"),
    StructuredOutputs(json_object=True, backend="xgrammar"),
]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"choice": []}, f"{FIELD}.choice: got an empty choice"),
    ({"choice": ["a", ""]}, f"{FIELD}.choice: got an empty choice"),
    ({"choice": ["a", 5]}, f"{FIELD}.choice"),
    ({"choice": "ab"}, f"{FIELD}.choice"),
    ({"choice": ["a\ud800"]}, f"{FIELD}.choice"),
    ({"choice": ["a"], "regex": "a"}, f"{FIELD}: got 2 constraints"),
    ({"choice": ["a"], "grammar": 'root ::= "a"'}, f"{FIELD}: got 2 constraints"),
    ({"choice": ["a"], "backend": None}, f"{FIELD}._backend: got nil"),
]


def sent(constraint: StructuredOutputs) -> StructuredOutputs | None:
    """Return the constraint that an engine gets."""
    params = SamplingParams(max_tokens=4, structured_outputs=constraint)
    request = EngineCoreRequest("r", [1], sampling_params=params)
    admission = Admission(Ready(rank=0, vocab_size=100))
    (_, body, *_), _ = admission.request(request, "r-1", 1.0)
    assert params.structured_outputs is constraint, "the caller's parameters stay the caller's"
    decoded = msgspec.msgpack.decode(body, type=EngineCoreRequest).sampling_params
    return None if decoded is None else decoded.structured_outputs


@pytest.mark.parametrize(("choice", "grammar"), GRAMMARS)
def test_a_choice_becomes_a_grammar(choice: list[str], grammar: str) -> None:
    assert choice_grammar(choice) == grammar
    given = StructuredOutputs(choice=choice, backend="xgrammar", backend_was_auto=True)
    wanted = StructuredOutputs(grammar=grammar, backend="xgrammar", backend_was_auto=True)
    assert sent(given) == wanted


@pytest.mark.parametrize("constraint", UNCHANGED, ids=str)
def test_all_else_is_sent_as_it_is(constraint: StructuredOutputs) -> None:
    assert sent(constraint) == constraint


@pytest.mark.parametrize(("fields", "message"), WRONG, ids=str)
def test_what_is_wrong_with_a_choice_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestRejectedError) as refused:
        sent(StructuredOutputs(**{"backend": "xgrammar"} | fields))
    assert message in str(refused.value)
