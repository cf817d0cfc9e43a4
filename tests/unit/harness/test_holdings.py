"""What a process holds now and did not hold before."""

import pytest

from enginecore_client.testing._holdings import Holdings

BEFORE = Holdings({1: "MainThread"}, {"socket": 2}, {10: "sleep 60"}, frozenset({1, 2}))


@pytest.mark.parametrize(
    ("now", "found"),
    [
        (BEFORE, {}),
        (Holdings({}, {}, {}, frozenset()), {}),
        (Holdings({1: "MainThread", 2: "ZMQbg/Reaper"}, {}, {}, frozenset({1, 2})), {}),
        (Holdings({3: "ZMQbg/Reaper"}, {}, {}, frozenset({3})), {"threads": ["ZMQbg/Reaper (3)"]}),
        (Holdings({}, {"socket": 3}, {}), {"sockets": ["1 of socket"]}),
        (Holdings({}, {"[eventfd]": 1}, {}), {"sockets": ["1 of [eventfd]"]}),
        (Holdings({}, {}, {11: "sleep 60"}), {"processes": ["11: sleep 60"]}),
    ],
    ids=["same", "less", "named later", "thread", "socket", "descriptor", "process"],
)
def test_only_what_is_new_is_beyond(now: Holdings, found: dict[str, list[str]]) -> None:
    assert now.beyond(BEFORE) == found
