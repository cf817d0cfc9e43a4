"""Warnings that come at a peer's pace."""

import logging

import pytest

from enginecore_curve.rare_log import RareLog


def test_one_warning_a_minute_tells_of_the_others(caplog: pytest.LogCaptureFixture) -> None:
    times = iter([5.0, 6.0, 64.9, 65.0, 125.0])
    log = RareLog(logging.getLogger("test"), lambda: next(times))
    for number in range(5):
        log.warning("key %d", number)
    assert [record.getMessage() for record in caplog.records] == [
        "key 0",
        "key 3 (2 more like it before)",
        "key 4",
    ]
