"""The block pool: holders, the order of forgetting, and digests of prefixes."""

import pytest

from enginecore_torch.blocks import NULL_BLOCK, BlockPool, extend_digests


def digests(tokens: list[int], size: int = 4, salt: str = "") -> list[bytes]:
    found: list[bytes] = []
    extend_digests(found, tokens, size, salt, len(tokens))
    return found


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)], ids=str
)
def test_blocks_for(tokens: int, blocks: int) -> None:
    assert BlockPool(8, 4).blocks_for(tokens) == blocks


def test_allocation_takes_every_block_but_the_null_block() -> None:
    pool = BlockPool(5, 4)
    taken = pool.allocate(4)
    assert sorted(taken) == [1, 2, 3, 4]
    assert NULL_BLOCK not in taken
    assert (pool.num_free, pool.usage) == (0, 1.0)
    with pytest.raises(ValueError, match="1 blocks wanted, 0 free"):
        pool.allocate(1)
    pool.release(taken)
    assert (pool.num_free, pool.usage) == (4, 0.0)


@pytest.mark.parametrize(("blocks", "size"), [(1, 4), (0, 4), (4, 0)])
def test_a_pool_that_holds_nothing_is_refused(blocks: int, size: int) -> None:
    with pytest.raises(ValueError, match="block pool"):
        BlockPool(blocks, size)


def test_shared_blocks_are_free_once_the_last_holder_lets_go() -> None:
    pool = BlockPool(4, 4)
    blocks = pool.allocate(2)
    pool.hold(blocks)
    pool.release(blocks)
    assert pool.num_free == 1
    pool.release(blocks)
    assert pool.num_free == 3
    with pytest.raises(AssertionError, match="released more often"):
        pool.release(blocks)


def test_free_blocks_are_remembered_until_they_are_needed() -> None:
    pool = BlockPool(4, 4)
    known = digests(list(range(8)))
    blocks = pool.allocate(2)
    for block, digest in zip(blocks, known, strict=True):
        pool.remember(block, digest)
    pool.release(blocks)
    assert pool.find(known) == blocks
    assert pool.count_free(blocks) == 2
    pool.hold(pool.find(known))
    assert pool.num_free == 1
    pool.release(blocks)
    pool.allocate(2)  # the block nobody used, then the end of the prefix
    assert pool.find(known) == blocks[:1]
    pool.allocate(1)
    assert pool.find(known) == []


def test_the_first_of_equal_blocks_is_remembered() -> None:
    pool = BlockPool(4, 4)
    (digest,) = digests([1, 2, 3, 4])
    first, second = pool.allocate(2)
    pool.remember(first, digest)
    pool.remember(second, digest)
    assert pool.find([digest]) == [first]
    pool.release([second])
    pool.allocate(2)
    assert pool.find([digest]) == [first]
    pool.forget()
    assert pool.find([digest]) == []


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8], 2),
        ([1, 2, 3, 4, 5, 6, 7, 9], 1),
        ([1, 2, 3, 0, 5, 6, 7, 8], 0),
        ([5, 6, 7, 8, 1, 2, 3, 4], 0),
    ],
    ids=["equal", "last differs", "early differs", "swapped"],
)
def test_digests_cover_all_that_came_before(other: list[int], same: int) -> None:
    pairs = zip(digests([1, 2, 3, 4, 5, 6, 7, 8]), digests(other), strict=True)
    assert [a == b for a, b in pairs] == [True] * same + [False] * (2 - same)


def test_salted_digests_are_the_owners_alone() -> None:
    tokens = [1, 2, 3, 4]
    assert len({digests(tokens, salt=salt)[0] for salt in ("", "a", "b")}) == 3


def test_digests_grow_with_the_full_blocks() -> None:
    tokens = list(range(10))
    grown: list[bytes] = []
    for until in (3, 4, 9, 10):
        extend_digests(grown, tokens, 4, "", until)
    assert grown == digests(tokens[:8])
