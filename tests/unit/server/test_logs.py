"""What a line of the server's log has, and how its format and level are chosen."""

import json
import logging

import pytest

from enginecore_server.config import ConfigError
from enginecore_server.logs import (
    LOG_FORMATS,
    LOG_LEVELS,
    JsonFormatter,
    PlainFormatter,
    chosen,
    note,
)
from enginecore_wire.contract import LOG_LEVEL_ENV

LOG = logging.getLogger("enginecore_server.test")
FORGED = 'r"\n2026-01-01 ERROR forged'


def noted(
    caplog: pytest.LogCaptureFixture, level: int, **fields: object
) -> list[logging.LogRecord]:
    """Return the records of one note."""
    with caplog.at_level(level, LOG.name):
        note(LOG, "request admitted", **fields)
    return caplog.records


def test_a_note_has_its_fields_in_json(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = noted(caplog, logging.DEBUG, request_id=FORGED, slot=3)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line) == json.loads(line) | {
        "level": "debug",
        "logger": "enginecore_server.test",
        "message": "request admitted",
        "request_id": FORGED,
        "slot": 3,
    }


def test_a_note_has_its_fields_in_plain_text_on_one_line(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = noted(caplog, logging.DEBUG, request_id=FORGED, slot=3)
    line = PlainFormatter().format(record)
    assert "\n" not in line
    assert line.endswith(f"request admitted request_id={json.dumps(FORGED)} slot=3")


def test_notes_are_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    assert noted(caplog, logging.INFO, request_id="r") == []


@pytest.mark.parametrize(
    ("option", "variable", "level"),
    [
        (None, None, "info"),
        (None, "DEBUG", "debug"),
        ("error", "debug", "error"),
        (None, "", "info"),
    ],
)
def test_the_command_line_goes_before_the_environment(
    option: str | None, variable: str | None, level: str
) -> None:
    environment = {} if variable is None else {LOG_LEVEL_ENV: variable}
    assert chosen(option, environment, LOG_LEVEL_ENV, LOG_LEVELS) == level


def test_a_wrong_variable_is_told() -> None:
    with pytest.raises(ConfigError, match=r"LOG_FORMAT: got 'xml', allowed: plain, json"):
        chosen(None, {"LOG_FORMAT": "xml"}, "LOG_FORMAT", LOG_FORMATS)
