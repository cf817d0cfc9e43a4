"""Constraints on text as a front end of vLLM writes them before it sends them to an engine."""

from typing import Any, Final

import msgspec

from enginecore_wire.requests import StructuredOutputs
from enginecore_wire.sampling_rules import WITHOUT_CHOICE

_ESCAPES: Final = {"\\": r"\\", '"': r"\""}


def in_engine_terms(wanted: StructuredOutputs) -> StructuredOutputs:
    """Return the constraint in terms that its grammar library has.

    xgrammar has no choice: it becomes a grammar that says the same. Whatever is wrong stays as it
    is, for the checks to name.
    """
    choice = wanted.choice
    if wanted.backend not in WITHOUT_CHOICE or wanted.grammar is not None or not _is_right(choice):
        return wanted
    assert choice is not None
    return msgspec.structs.replace(wanted, choice=None, grammar=choice_grammar(choice))


def choice_grammar(choice: list[str]) -> str:
    """Return the grammar, in xgrammar's EBNF, of exactly these strings, none of them empty."""
    return "root ::= " + " | ".join(f'"{_escaped(text)}"' for text in choice)


def _is_right(choice: Any) -> bool:
    """Say whether it is a list of strings that can travel, none of them empty."""
    if not isinstance(choice, list) or not choice:
        return False
    try:
        "".join(choice).encode()
    except (TypeError, UnicodeEncodeError):
        return False
    return all(choice)


def _escaped(text: str) -> str:
    """Return a string's characters as EBNF has them between quotes."""
    return "".join(
        _ESCAPES.get(char) or (char if char.isprintable() else f"\\U{ord(char):08x}")
        for char in text
    )
