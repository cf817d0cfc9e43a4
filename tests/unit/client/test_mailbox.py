"""Where outputs wait."""

import asyncio
import os
import signal
import threading

import pytest

from enginecore_client import ClientClosedError, EngineDeadError, OverloadedError
from enginecore_client._shell.mailbox import Signal, TaskMailbox, ThreadMailbox


def test_threads_get_in_order_and_time_out() -> None:
    box: ThreadMailbox[int] = ThreadMailbox()
    for item in (1, 2):
        box.put(item)
    assert [box.get(), box.get(0)] == [1, 2]
    with pytest.raises(TimeoutError):
        box.get(0.01)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_does_not_wait_for_what_cannot_come() -> None:
    box: ThreadMailbox[int] = ThreadMailbox()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            box.get()
        except ClientClosedError:
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_the_end_comes_after_the_items_and_to_everybody() -> None:
    box: ThreadMailbox[int] = ThreadMailbox()
    box.put(1)
    caught: list[BaseException] = []

    def read() -> None:
        try:
            box.get()
        except ClientClosedError as error:
            caught.append(error)

    assert box.get() == 1
    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    box.finish(ClientClosedError("over"))
    for reader in readers:
        reader.join()
    assert len(caught) == len({id(error) for error in caught}) == 3


async def test_tasks_are_served_in_turn() -> None:
    box: TaskMailbox[int] = TaskMailbox()
    readers = [asyncio.create_task(box.get()) for _ in range(3)]
    await asyncio.sleep(0)
    for item in range(3):
        box.put(item)
    assert await asyncio.gather(*readers) == [0, 1, 2]


async def test_a_cancelled_reader_loses_nothing() -> None:
    box: TaskMailbox[int] = TaskMailbox()
    first, second = (asyncio.create_task(box.get()) for _ in range(2))
    await asyncio.sleep(0)
    box.put(1)
    first.cancel()
    assert await second == 1
    assert first.cancelled()


@pytest.mark.parametrize("waiting", [0, 2], ids=["alone", "behind others"])
async def test_readers_that_gave_up_are_forgotten(waiting: int) -> None:
    box: TaskMailbox[int] = TaskMailbox()
    others = [asyncio.create_task(box.get()) for _ in range(waiting)]
    await asyncio.sleep(0)
    for _ in range(100):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(box.get(), 0.0001)
    assert len(box._others) == max(waiting - 1, 0)
    for item in range(waiting):
        box.put(item)
    assert await asyncio.gather(*others) == list(range(waiting))
    box.put(7)
    assert await box.get() == 7


async def test_the_first_reader_may_give_up_before_the_others() -> None:
    box: TaskMailbox[int] = TaskMailbox()
    first, second = (asyncio.create_task(box.get()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    box.put(1)
    assert await second == 1


async def test_the_end_wakes_every_task() -> None:
    box: TaskMailbox[int] = TaskMailbox()
    readers = [asyncio.create_task(box.get()) for _ in range(3)]
    await asyncio.sleep(0)
    box.finish(ClientClosedError("over"))
    for reader in readers:
        with pytest.raises(ClientClosedError):
            await reader


def test_only_the_last_unread_loss_of_an_engine_is_kept() -> None:
    box: ThreadMailbox[BaseException] = ThreadMailbox()
    for number in range(100):
        box.report(EngineDeadError(str(number), engine=number % 2))
    box.report(EngineDeadError("with requests", engine=0, request_ids=["a"]))
    box.report(OverloadedError("another kind", engine=0))
    found = [str(box.get(0)) for _ in range(4)]
    assert found == ["98", "99", "with requests", "another kind"]
    with pytest.raises(TimeoutError):
        box.get(0)


async def test_signal_wakes_all_and_times_out() -> None:
    signal = Signal()
    waiting = [asyncio.create_task(signal.wait(30)) for _ in range(2)]
    await asyncio.sleep(0)
    signal.notify()
    await asyncio.gather(*waiting)
    await signal.wait(0.01)
