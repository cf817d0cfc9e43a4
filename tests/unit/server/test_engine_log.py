"""What is kept of an engine's log."""

import pytest

from enginecore_server.engine_log import TAIL_LINES, EngineLog

WORKER = "(VllmWorker-0 pid=33) ERROR 11-30 23:10:33 [multiproc_executor.py:953] "
ENGINE = "(EngineCore pid=20) ERROR 11-30 23:10:35 [core.py:1510] "
LOG = f"""\
INFO 11-30 23:10:31 [cpu.py:644] Failed to import: ImportError('libnuma.so.1: no such file')
{WORKER}Traceback (most recent call last):
{WORKER}    raise AttributeError(
{WORKER}AttributeError: no such attribute
{ENGINE}Traceback (most recent call last):
{ENGINE}Exception: WorkerProc initialization failed
loading:   0%\rloading:  50%\rloading: 100%\r
é ends without a line break"""


@pytest.mark.parametrize("size", [1, 3, 50, 100_000])
def test_tail_and_first_error_however_the_log_is_cut(size: int) -> None:
    log, data = EngineLog(), LOG.encode()
    for start in range(0, len(data), size):
        log.feed(data[start : start + size])
    assert log.first_error == "AttributeError: no such attribute"
    assert list(log.tail)[-1] == "loading: 100%"
    log.end()
    log.end()
    assert list(log.tail)[-2:] == ["loading: 100%", "é ends without a line break"]


def test_what_is_kept_is_bounded() -> None:
    log = EngineLog()
    for number in range(3 * TAIL_LINES):
        log.feed(f"{number}\n".encode())
    log.feed(b"x" * 100_000)
    log.feed(b"y\nsome.module.OddError: " + b"z" * 5000 + b"\n")
    assert len(log.tail) == TAIL_LINES
    assert max(map(len, log.tail)) <= 8192
    assert log.tail[-2].endswith("xy")
    assert log.first_error.startswith("some.module.OddError: zzz")
    assert len(log.first_error) == 500


def test_an_error_may_have_no_words() -> None:
    log = EngineLog()
    log.feed(f"{WORKER}AssertionError\n".encode())
    assert log.first_error == "AssertionError"


@pytest.mark.parametrize(
    "line", ["Error: ", "no error: here", "ImportError('x: y')", "RuntimeErrors", "see Error: x"]
)
def test_other_lines_are_no_errors(line: str) -> None:
    log = EngineLog()
    log.feed(f"{line}\n".encode())
    assert log.first_error == ""
