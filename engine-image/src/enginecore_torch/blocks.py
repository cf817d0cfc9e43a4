"""The KV cache's blocks: who holds them, which are free, and what free ones still remember.

Block 0 is never handed out: padding reads it and dummy work writes it.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

NULL_BLOCK = 0
"""The id of the block that belongs to nobody."""


class BlockPool:
    """Fixed-size blocks with reference counts and a cache of prefixes.

    A block whose last holder lets go keeps its content until it is needed again, least
    recently used first, so that a later sequence with the same prefix can take it over.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Make a pool.

        Args:
            num_blocks: blocks in all, the null block among them.
            block_size: tokens per block.

        Raises:
            ValueError: there is no block besides the null block, or blocks hold nothing.
        """
        if num_blocks < 2 or block_size < 1:
            raise ValueError(
                f"block pool: {num_blocks} blocks of {block_size} tokens; "
                "at least 2 blocks of 1 token are needed"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._references = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._digest_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks nobody holds."""
        return len(self._free)

    @property
    def capacity(self) -> int:
        """Blocks that can be held at all."""
        return self.num_blocks - 1

    @property
    def usage(self) -> float:
        """The share of blocks that are held, 0 to 1."""
        return 1.0 - len(self._free) / self.capacity

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks `tokens` tokens take."""
        return -(-tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks; what they remembered is forgotten.

        Raises:
            ValueError: fewer than `count` blocks are free.
        """
        if count > len(self._free):
            raise ValueError(f"block pool: {count} blocks wanted, {len(self._free)} free")
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._references[block] = 1
            digest = self._digest_of.pop(block, None)
            if digest is not None:
                del self._block_of[digest]
        return taken

    def hold(self, blocks: Iterable[int]) -> None:
        """Add one holder to each of `blocks`, which may be free blocks of the cache."""
        for block in blocks:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Take one holder from each of `blocks`.

        The last blocks become free first, so that the beginnings of prompts, which more
        sequences share, are forgotten last.
        """
        for block in reversed(blocks):
            references = self._references[block] - 1
            assert references >= 0, f"block {block} is released more often than held"
            self._references[block] = references
            if references == 0:
                self._free[block] = None

    def remember(self, block: int, digest: bytes) -> None:
        """Let the cache know that the held `block` is full and its content is `digest`."""
        if digest not in self._block_of and block not in self._digest_of:
            self._block_of[digest] = block
            self._digest_of[block] = digest

    def find(self, digests: Sequence[bytes]) -> list[int]:
        """Return the blocks of the longest known prefix of `digests`."""
        found = []
        for digest in digests:
            block = self._block_of.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def count_free(self, blocks: Iterable[int]) -> int:
        """Return how many of `blocks` nobody holds."""
        return sum(self._references[block] == 0 for block in blocks)

    def forget(self) -> None:
        """Empty the cache of prefixes; held blocks stay held."""
        self._digest_of.clear()
        self._block_of.clear()


def extend_digests(
    digests: list[bytes], tokens: Sequence[int], block_size: int, salt: str, until: int
) -> None:
    """Append to `digests` those of the full blocks among the first `until` tokens.

    Each digest covers its block, all blocks before it and `salt`, so equal digests mean
    equal prefixes. They are cryptographic: a client must not be able to make a prompt that
    is taken for another's.

    Args:
        digests: of the blocks so far; extended in place.
        tokens: the sequence's token ids.
        block_size: tokens per block.
        salt: keeps the cache entries of different owners apart.
        until: tokens to look at.
    """
    for index in range(len(digests), until // block_size):
        parent = digests[index - 1] if index else blake2b(salt.encode(), digest_size=16).digest()
        content = array("q", tokens[index * block_size : (index + 1) * block_size])
        digests.append(blake2b(content.tobytes(), digest_size=16, key=parent).digest())
