"""When an aborted request id, or a given-up slot, may be used again.

After an abort the engine may still have outputs under way. A fence is a utility call of the
server's own, sent to the engine behind the abort and answered through the same slot: outputs
of one slot stay in order, so once the reply is here nothing from before the abort can follow.
Until then the ids are held and the slot stays taken; a late output cannot be taken for one of
a new request with the same id, nor reach the slot's next owner.
"""

from collections.abc import Callable, Collection


class Fence:
    """Ids held in one slot, and whether the slot is given up with them."""

    __slots__ = ("call_id", "ids", "release")

    def __init__(self, call_id: int) -> None:
        self.call_id = call_id
        self.ids: set[str] = set()
        self.release = False


class FenceBook:
    """At most one fence per slot is under way; what comes meanwhile waits for the next.

    Args:
        next_call_id: gives call ids that no client uses.
    """

    def __init__(self, next_call_id: Callable[[], int]) -> None:
        self._next_call_id = next_call_id
        self._under_way: dict[int, Fence] = {}
        self._behind: dict[int, Fence] = {}
        self._held: set[str] = set()

    def holds(self, request_id: str) -> bool:
        """Say whether an id may not be used yet."""
        return request_id in self._held

    def raise_fence(self, slot: int, ids: Collection[str], release: bool) -> int | None:
        """Hold `ids`, whose abort was sent just now; return the id of the call to send, or
        None if a call is under way in this slot already."""
        fence = self._behind.get(slot) or Fence(self._next_call_id())
        fence.ids.update(ids)
        fence.release |= release
        self._held.update(ids)
        if slot in self._under_way:
            self._behind[slot] = fence
            return None
        self._under_way[slot] = fence
        return fence.call_id

    def expects(self, slot: int, call_id: int) -> bool:
        """Say whether a reply is that of the slot's fence."""
        fence = self._under_way.get(slot)
        return fence is not None and fence.call_id == call_id

    def passed(self, slot: int) -> tuple[bool, int | None]:
        """Note that the slot's fence was answered.

        Returns:
            Whether the slot is free now, and the id of the next call to send, or None.
        """
        fence = self._under_way.pop(slot)
        self._held -= fence.ids
        behind = self._behind.pop(slot, None)
        if behind is None:
            return fence.release, None
        self._under_way[slot] = behind
        self._held |= behind.ids
        return False, behind.call_id
