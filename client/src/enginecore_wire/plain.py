"""Plain data: what may travel in the fields that take any value.

vLLM gives two extension types of msgpack to pickles. Unpickling runs code of the sender's
choice, so no value of these types is ever written or read here.
"""

from typing import Any, Final

import msgspec

EXT_PICKLE: Final = 1
EXT_CLOUDPICKLE: Final = 2
EXT_RAW_VIEW: Final = 3
"""Extension types of vLLM; the last, bytes of an array, is the only one that travels."""

_REASONS: Final = {
    EXT_PICKLE: "it carries a pickle, and reading one runs its sender's code",
    EXT_CLOUDPICKLE: "it carries a pickled function, and reading one runs its sender's code",
}


class ExtensionError(msgspec.ValidationError):
    """A message carries an extension type that is not read; `code` is its number."""

    def __init__(self, code: int) -> None:
        super().__init__(f"extension type {code} is not accepted: {_reason(code)}")
        self.code = code


class UnsendableError(TypeError):
    """A value could only travel as a pickle, which is never written."""


def read_extension(code: int, data: memoryview) -> msgspec.msgpack.Ext:
    """Return the extension value in a message.

    Raises:
        ExtensionError: it is not the bytes of an array.
    """
    if code != EXT_RAW_VIEW:
        raise ExtensionError(code)
    return msgspec.msgpack.Ext(code, data)


def refuse_extensions(value: Any) -> None:
    """Refuse ready-made extension values in plain data: they could carry a pickle.

    Raises:
        UnsendableError: there is one of another type than the bytes of an array.
    """
    if not value:
        return
    pending, seen = [value], set()
    while pending:
        node = pending.pop()
        if isinstance(node, msgspec.msgpack.Ext):
            if node.code != EXT_RAW_VIEW:
                raise UnsendableError(
                    f"extension type {node.code} cannot be sent: {_reason(node.code)}"
                )
        elif isinstance(node, dict | list | tuple | set | frozenset) and id(node) not in seen:
            seen.add(id(node))
            pending += node
            if isinstance(node, dict):
                pending += node.values()


def _reason(code: int) -> str:
    return _REASONS.get(code, "only type 3, the bytes of an array, is known")
