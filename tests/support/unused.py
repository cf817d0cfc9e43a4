"""Functions, methods and classes that nothing refers to, by their names alone.

A name counts as used wherever it is loaded, imported, looked up as an attribute, asked for as an
argument (a fixture), or written as a whole string; so what is found here is unused for sure, but a
name that two things share hides either.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PASSIVE_DECORATORS = frozenset(
    {"property", "cached_property", "cache", "staticmethod", "classmethod", "contextmanager",
     "asynccontextmanager", "dataclass", "override", "fixture", "wraps", "runtime_checkable"}
)  # fmt: skip
"""They hand the function on; any other one may keep it to be called later."""
OWN_BASES = frozenset(
    {"Struct", "NamedTuple", "Enum", "StrEnum", "IntEnum", "IntFlag", "Exception", "ValueError",
     "RuntimeError", "KeyError", "OSError", "TypeError", "TimeoutError", "ABC", "Generic"}
)  # fmt: skip
"""Bases that call no method by a name of their own; those of any other base from elsewhere may."""
CALLED_BY_PYTEST = ("test_", "pytest_", "Test")


class Definition(NamedTuple):
    """One function or class; `free` says that it may be called by what is not ours."""

    name: str
    path: Path
    line: int
    free: bool


def find_unused(
    sources: Iterable[Path], users: Iterable[Path] = (), documents: Iterable[Path] = ()
) -> list[Definition]:
    """Return what is defined in `sources` and named neither there, nor in `users` or `documents`.

    Args:
        sources: Python files.
        users: more Python files that may refer to it.
        documents: texts; what they name is for people to call.
    """
    sources = list(sources)
    nodes = {path: list(ast.walk(ast.parse(path.read_text()))) for path in {*sources, *users}}
    used = {name for found in nodes.values() for node in found for name in _references(node)}
    used |= {word for path in documents for word in re.findall(r"\w+", path.read_text())}
    known = OWN_BASES | {
        node.name for found in nodes.values() for node in found if isinstance(node, ast.ClassDef)
    }
    defined = (item for path in sources for item in _definitions(nodes[path], path, known))
    return [item for item in defined if not item.free and item.name not in used]


def _definitions(
    nodes: Iterable[ast.AST], path: Path, known: frozenset[str]
) -> Iterator[Definition]:
    for node in nodes:
        called_from_outside = isinstance(node, ast.ClassDef) and not all(
            _last_name(base) in known for base in node.bases
        )
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            special = child.name.startswith(("__", *CALLED_BY_PYTEST))
            kept = any(_keeps(decorator) for decorator in child.decorator_list)
            free = special or kept or called_from_outside
            yield Definition(child.name, path, child.lineno, free)


def _keeps(decorator: ast.expr) -> bool:
    if isinstance(decorator, ast.Call):
        automatic = any(keyword.arg == "autouse" for keyword in decorator.keywords)
        return automatic or _keeps(decorator.func)
    return _last_name(decorator) not in PASSIVE_DECORATORS


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return node.attr
        case ast.Subscript():
            return _last_name(node.value)
    return ""


def _references(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(ctx=ast.Load()):
            yield node.id
        case ast.Attribute():
            yield node.attr
        case ast.arg():
            yield node.arg
        case ast.alias():
            yield node.name.rpartition(".")[2]
        case ast.keyword(arg=str()):
            yield str(node.arg)
        case ast.Constant(value=str()):
            # The name of a fixture, or the path of what a program imports: package.module.Class.
            yield re.split(r"[.:]", str(node.value))[-1]
