"""The books of sessions, slots and requests."""

import pytest

from enginecore_server.sessions import Greeting, Holder, Session, SessionBook, Side
from enginecore_wire.utility import Role

ALICE, BOB = b"a" * 16, b"b" * 16
NONCE, OTHER_NONCE = b"n" * 8, b"m" * 8


def greet(book: SessionBook, side: Side, who: bytes = ALICE, **fields: object) -> Greeting:
    values = {"nonce": NONCE, "name": "test", "fd": 10 if side is Side.INPUT else 20} | fields
    return book.hello(side, who, protocol=1, **values)  # type: ignore[arg-type]


def opened(book: SessionBook, who: bytes = ALICE, **fields: object) -> Session:
    greet(book, Side.INPUT, who, **fields)
    assert greet(book, Side.OUTPUT, who, **fields) is Greeting.OPENED
    session = book.find(who)
    assert session is not None
    return session


@pytest.mark.parametrize("order", [list(Side), list(reversed(Side))])
def test_a_session_opens_with_the_second_hello(order: list[Side]) -> None:
    book = SessionBook(2)
    assert greet(book, order[0]) is Greeting.INCOMPLETE
    assert book.find(ALICE) is None
    assert greet(book, order[1]) is Greeting.OPENED
    assert book.find(ALICE) is book.at_slot(1)


def test_hello_repeats_without_effect() -> None:
    book = SessionBook(2)
    session = opened(book)
    session.outputs_sent = 7
    assert greet(book, Side.INPUT) is Greeting.REPEATED
    assert book.find(ALICE) is session
    assert session.outputs_sent == 7


def test_the_same_side_twice_opens_nothing() -> None:
    book = SessionBook(2)
    assert greet(book, Side.INPUT) is Greeting.INCOMPLETE
    assert greet(book, Side.INPUT) is Greeting.INCOMPLETE
    assert len(book) == 0


def test_another_nonce_is_a_conflict_and_changes_nothing() -> None:
    book = SessionBook(2)
    session = opened(book)
    assert greet(book, Side.OUTPUT, nonce=OTHER_NONCE, fd=99) is Greeting.CONFLICT
    assert book.find(ALICE) is session
    assert session.fds[Side.OUTPUT] == 20


def test_half_a_hello_of_another_nonce_does_not_complete_one() -> None:
    book = SessionBook(2)
    greet(book, Side.INPUT)
    assert greet(book, Side.OUTPUT, nonce=OTHER_NONCE) is Greeting.INCOMPLETE


def test_slots_run_out_and_come_back_only_when_released() -> None:
    book = SessionBook(1)
    session = opened(book)
    greet(book, Side.INPUT, BOB, fd=11)
    assert greet(book, Side.OUTPUT, BOB, fd=21) is Greeting.FULL
    book.end(session)
    assert greet(book, Side.OUTPUT, BOB, fd=21) is Greeting.FULL
    book.release_slot(session.slot)
    assert greet(book, Side.OUTPUT, BOB, fd=21) is Greeting.OPENED


def test_an_ended_session_stays_refused() -> None:
    book = SessionBook(2)
    book.end(opened(book))
    assert greet(book, Side.INPUT) is Greeting.ENDED
    assert greet(book, Side.INPUT, nonce=OTHER_NONCE) is Greeting.INCOMPLETE


@pytest.mark.parametrize("side", list(Side))
def test_grace_runs_from_the_first_break_to_the_return_of_both(side: Side) -> None:
    book = SessionBook(2)
    session = opened(book)
    fd = session.fds[side]
    assert fd is not None
    assert book.disconnected(side, fd, now=50.0) is session
    assert book.expired(54.9, 5.0) == []
    assert book.expired(55.0, 5.0) == [session]
    assert greet(book, side, fd=30) is Greeting.REPEATED
    assert book.expired(1000.0, 5.0) == []


def test_one_side_back_is_not_enough() -> None:
    book = SessionBook(2)
    session = opened(book)
    book.disconnected(Side.INPUT, 10, 1.0)
    book.disconnected(Side.OUTPUT, 20, 2.0)
    assert greet(book, Side.INPUT, fd=30) is Greeting.INCOMPLETE
    assert book.expired(6.0, 5.0) == [session]


def test_the_end_of_a_replaced_connection_breaks_nothing() -> None:
    book = SessionBook(2)
    session = opened(book)
    greet(book, Side.INPUT, fd=30)
    assert book.disconnected(Side.INPUT, 10, 1.0) is None
    assert session.connected


def test_a_reused_fd_is_its_new_owners() -> None:
    book = SessionBook(2)
    alice = opened(book)
    book.disconnected(Side.INPUT, 10, 1.0)
    bob = opened(book, BOB, fd=10)
    assert book.disconnected(Side.INPUT, 10, 2.0) is bob
    assert alice.broken_at == 1.0


def test_requests_are_booked_by_owner() -> None:
    book = SessionBook(2)
    alice = opened(book)
    bob = opened(book, BOB, fd=11)
    book.add(alice, "a1", 3, 0.0)
    book.add(alice, "a2", 3, 0.0)
    book.add(bob, "b1", 3, 0.0)
    assert book.owned(alice, ["a2", "b1", "a2", "nobody's"]) == ["a2"]
    book.forget(alice, ["a2"])
    assert sorted(book.requests) == ["a1", "b1"]
    assert book.end(alice) == ["a1"]
    assert sorted(book.requests) == ["b1"]


def test_nothing_waits_for_an_ended_session() -> None:
    book = SessionBook(2)
    session = opened(book)
    session.backlog.append([b"never read"])
    session.backlog_bytes = 10
    book.end(session)
    assert not session.connected
    assert (len(session.backlog), session.backlog_bytes) == (0, 0)


def test_half_open_hellos_are_bounded() -> None:
    book = SessionBook(1)
    for number in range(5000):
        greet(book, Side.INPUT, number.to_bytes(16, "big"), fd=number)
    assert greet(book, Side.OUTPUT, (0).to_bytes(16, "big"), fd=6000) is Greeting.INCOMPLETE
    assert greet(book, Side.OUTPUT, (4999).to_bytes(16, "big"), fd=6001) is Greeting.OPENED


def test_a_session_is_held_until_its_owner_says_hello_where_outputs_go() -> None:
    book = SessionBook(1)
    key = Holder("key", Role.INFER)
    session = opened(book, holder=key)
    assert (session.key, session.role, session.held) == ("key", Role.INFER, False)
    book.disconnected(Side.INPUT, 10, 1.0)
    assert not session.held
    book.disconnected(Side.OUTPUT, 20, 1.0)
    assert session.held
    assert greet(book, Side.INPUT, fd=2, holder=key) is Greeting.INCOMPLETE
    assert session.held
    assert greet(book, Side.OUTPUT, fd=3, holder=key) is Greeting.REPEATED
    assert not session.held


def test_both_hellos_must_come_with_one_key() -> None:
    book = SessionBook(1)
    key, other = Holder("key", Role.INFER), Holder("other", Role.INFER)
    assert greet(book, Side.INPUT, fd=1, holder=key) is Greeting.INCOMPLETE
    assert greet(book, Side.OUTPUT, fd=2, holder=other) is Greeting.INCOMPLETE
    assert greet(book, Side.INPUT, fd=3, holder=other) is Greeting.OPENED
    assert book.sessions()[0].key == "other"
