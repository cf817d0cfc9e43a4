"""The queue: each key once, never twice at a time, delays that can be cut short."""

import asyncio

from enginecore_operator.workqueue import LONGEST_DELAY, Key, WorkQueue

A, B = Key("EngineCore", "n", "a"), Key("EngineCore", "n", "b")


async def test_each_key_once_in_order() -> None:
    queue = WorkQueue()
    for key in (A, B, A):
        queue.add(key)
    assert len(queue) == 2
    assert [await queue.get(), await queue.get()] == [A, B]


async def test_key_added_while_worked_on_comes_again_afterwards() -> None:
    queue = WorkQueue()
    queue.add(A)
    assert await queue.get() == A
    queue.add(A)
    queue.add(B)
    assert await queue.get() == B
    queue.done(A)
    assert await queue.get() == A


async def test_get_waits() -> None:
    queue = WorkQueue()
    waiter = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not waiter.done()
    queue.add(A)
    assert await waiter == A


async def test_delays() -> None:
    queue = WorkQueue()
    queue.add_after(A, 3600)
    queue.add_after(A, 0.01)
    assert await queue.get() == A
    queue.done(A)
    queue.add_after(B, 3600)
    queue.add(B)
    assert await queue.get() == B
    queue.clear()


async def test_back_off_doubles_and_is_forgiven() -> None:
    queue = WorkQueue()
    delays = [queue.add_failed(A) for _ in range(12)]
    assert delays[:4] == [0.2, 0.4, 0.8, 1.6]
    assert delays[-1] == LONGEST_DELAY
    queue.forgive(A)
    assert queue.add_failed(A) == 0.2
    queue.clear()
