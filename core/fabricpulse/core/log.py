"""Structured logs on standard error, logfmt or JSON.

    log = get_logger(__name__)
    log.info("edge down", device="rail0", peer="h1")

A thin layer over the standard library's logging, whose handlers, levels and test helpers keep working. structlog was
used first and given up: it costs a bare daemon 8 MB of memory, for console renderers that a daemon never uses.
"""

import json
import logging
import sys
from typing import Any, Literal

from fabricpulse.core.rfc3339 import rfc3339

LogFormat = Literal["logfmt", "json"]
LEVELS = ("debug", "info", "warning", "error")

# Characters of a logfmt value that needs no quotes.
_PLAIN = frozenset(
    "!#$%&'()*+,-./0123456789:;<>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmnopqrstuvwxyz{|}~"
)


class Logger:
    """A named logger: an event in words that never change, and fields that do."""

    __slots__ = ("_fields", "_logger")

    def __init__(self, logger: logging.Logger, fields: dict[str, Any]) -> None:
        self._logger = logger
        self._fields = fields

    def bind(self, **fields: Any) -> "Logger":
        """A logger that adds `fields` to each of its lines."""
        return Logger(self._logger, self._fields | fields)

    def debug(self, event: str, **fields: Any) -> None:
        """Diagnostic detail."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Normal operation that an operator may need to know about later."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Something is wrong and was handled."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Something failed."""
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """As `error`, with the traceback of the exception being handled."""
        self._log(logging.ERROR, event, fields, exc_info=True)

    def _log(self, level: int, event: str, fields: dict[str, Any], *, exc_info: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            # As one argument of no format: the event is taken as it is, "%" and all.
            self._logger.log(
                level, event, exc_info=exc_info, extra={"fields": self._fields | fields}, stacklevel=3
            )


def get_logger(name: str) -> Logger:
    """The logger called `name`; `configure_logging` decides where its lines go."""
    return Logger(logging.getLogger(name), {})


def configure_logging(level: str = "info", fmt: LogFormat = "logfmt") -> None:
    """Sends all logs of the process, those of libraries too, to standard error in one format.

    level : one of LEVELS. fmt : "logfmt" or "json".
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if fmt == "json" else _LogfmtFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _content(record: logging.LogRecord, formatter: logging.Formatter) -> dict[str, Any]:
    content: dict[str, Any] = {
        "ts": rfc3339(int(record.created * 1e6) * 1000, 3),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": record.getMessage(),
    }
    # A field cannot take the place of the line's own four.
    content |= {k: v for k, v in getattr(record, "fields", {}).items() if k not in content}
    if record.exc_info:
        content["exception"] = formatter.formatException(record.exc_info)
    return content


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_content(record, self), default=str, ensure_ascii=False)


class _LogfmtFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{key}={_logfmt(value)}" for key, value in _content(record, self).items())


def _logfmt(value: Any) -> str:
    if value is None:
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if text and _PLAIN.issuperset(text) else json.dumps(text, ensure_ascii=False)
