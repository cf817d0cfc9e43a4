"""What a utility call must keep: a known method, plain arguments, and no pickle in disguise."""

from collections.abc import Sequence
from typing import Any

from enginecore_wire.control import RejectCode
from enginecore_wire.plain import UnsendableError, refuse_extensions
from enginecore_wire.problems import FieldProblem, outside
from enginecore_wire.sampling_rules import MAX_NESTING, nests_deeper
from enginecore_wire.utility import UTILITY_METHODS


def check_call(method: Any, args: Sequence[Any]) -> FieldProblem | None:
    """Return the first thing wrong with a utility call, or None.

    vLLM's single-process executor unpickles a `collective_rpc` method that is bytes and runs
    what comes out, whatever its settings say; a callable could only travel as a pickle.
    """
    if not isinstance(method, str) or method not in UTILITY_METHODS:
        shown = repr(method)[:64]
        return FieldProblem(
            "method",
            f"method: {shown} is not among the calls a client may make; known are "
            f"{', '.join(sorted(UTILITY_METHODS))}",
            RejectCode.UNKNOWN_METHOD,
        )
    if method == "collective_rpc" and not _is_public_name(args[:1]):
        return outside(
            "args[0]",
            _shown(args[:1]),
            "the public name of a worker's method, as a string",
            "functions and bytes never travel: an engine would unpickle them",
        )
    if nests_deeper(list(args), MAX_NESTING):
        return outside("args", "deeper nesting", f"at most {MAX_NESTING} levels")
    try:
        refuse_extensions(args)
    except UnsendableError as error:
        return outside("args", str(error), "plain data")
    return None


def _is_public_name(first: Sequence[Any]) -> bool:
    name = first[0] if first else None
    return isinstance(name, str) and name.isidentifier() and not name.startswith("_")


def _shown(first: Sequence[Any]) -> str:
    if not first:
        return "nothing"
    return repr(first[0])[:64] if isinstance(first[0], str) else type(first[0]).__name__
