"""The server's own log: one line per event on stderr, plain or JSON.

At level debug the way of each request can be followed by its id: `note` names it in a field of
its own, so that no one has to look for it inside a sentence.
"""

import json
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from enginecore_server.config import ConfigError

LOG_FORMATS: Final = ("plain", "json")
LOG_LEVELS: Final = ("info", "debug", "warning", "error")
"""The first of each is the default."""

_FIELDS: Final = "fields"


def note(log: logging.Logger, event: str, **fields: Any) -> None:
    """Write an event of a request or client at level debug, with its fields.

    Args:
        log: whose event it is.
        event: what happened, in words that stay the same.
        fields: whatever it is about; `request_id` for a request.
    """
    if log.isEnabledFor(logging.DEBUG):
        log.debug(event, extra={_FIELDS: fields})


class PlainFormatter(logging.Formatter):
    """Time, level, logger, message; fields follow as `name=value`, text in quotation marks.

    What clients chose is escaped: a line break in an id begins no line of its own.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line of a record, without a traceback."""
        fields = [f" {name}={json.dumps(value)}" for name, value in _fields(record).items()]
        return super().formatMessage(record) + "".join(fields)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, fields, and the traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def chosen(
    option: str | None, environment: Mapping[str, str], variable: str, allowed: Sequence[str]
) -> str:
    """Return a setting of the log: of the command line, else of a variable, else the default.

    Raises:
        ConfigError: the variable's value is none of `allowed`.
    """
    value = option or environment.get(variable, "").lower() or allowed[0]
    if value not in allowed:
        raise ConfigError(f"{variable}: got {value!r}, allowed: {', '.join(allowed)}")
    return value


def configure(log_format: str, level: str) -> None:
    """Send the log to stderr from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else PlainFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = record.__dict__.get(_FIELDS, {})
    return fields
