"""Which LoRA adapters requests may name: those that the engine is known to have loaded.

vLLM loads the adapter of a request in the middle of a step, from the path that the request names;
where that fails, the whole engine ends. A call of `add_lora` fails alone.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from enginecore_server.heads import UtilityHead
from enginecore_wire.problems import FieldProblem, outside
from enginecore_wire.requests import LoRARequest

_ADD: Final = "add_lora"
_REMOVE: Final = "remove_lora"


class _Adapter(msgspec.Struct, array_like=True):
    """What every vLLM release has first in a LoRARequest."""

    lora_name: str
    lora_int_id: int
    lora_path: str


class AdapterBook:
    """Adapters by number, from the calls that load and remove them and the engine's replies.

    The engine takes requests and calls in the order in which they come, so that an adapter is no
    longer there for what comes after the call that removes it, answered or not.
    """

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}
        self._leaving: dict[int, str] = {}
        self._asked: dict[tuple[int, int], tuple[str, Any]] = {}

    def asked(self, slot: int, call_id: int, method: str, args: Sequence[Any]) -> None:
        """Note a call that goes to the engine."""
        if method in (_ADD, _REMOVE) and args:
            self._asked[slot, call_id] = method, args[0]
        if method == _REMOVE and args and isinstance(args[0], int) and args[0] in self._paths:
            self._leaving[args[0]] = self._paths.pop(args[0])

    def answered(self, slot: int, reply: UtilityHead) -> None:
        """Note the reply to a call."""
        method, argument = self._asked.pop((slot, reply.call_id), ("", None))
        failed = reply.failure_message is not None
        if method == _REMOVE and isinstance(argument, int):
            self._removed(argument, failed)
        elif method == _ADD and not failed:
            self._added(argument)

    def _removed(self, number: int, failed: bool) -> None:
        if not failed:
            self._paths.pop(number, None)
            self._leaving.pop(number, None)
        elif number in self._leaving and not self._being_removed(number):
            self._paths[number] = self._leaving.pop(number)

    def _added(self, argument: Any) -> None:
        try:
            adapter = msgspec.convert(argument, _Adapter)
        except msgspec.ValidationError:
            return
        number = adapter.lora_int_id
        # A number that is loaded already stays what it was, whatever path the call had.
        paths = self._leaving if self._being_removed(number) else self._paths
        paths.setdefault(number, adapter.lora_path)

    def _being_removed(self, number: int) -> bool:
        return any(asked == (_REMOVE, number) for asked in self._asked.values())

    def check(self, adapter: LoRARequest | None) -> FieldProblem | None:
        """Return what is wrong with a request's adapter, or None."""
        if adapter is None or self._paths.get(adapter.lora_int_id) == adapter.lora_path:
            return None
        return outside(
            "lora_request",
            f"adapter {adapter.lora_int_id} of {adapter.lora_path!r}",
            "an adapter that add_lora has loaded",
            "call add_lora and wait for its result",
        )
