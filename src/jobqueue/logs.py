"""JSON lines on stdout, from the standard library's logging; other libraries' logs join in.

Context travels as ``extra={"job_id": ...}`` and becomes fields of the line. Passwords in URLs
are masked wherever they turn up.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any, TextIO

from jobqueue.redaction import MASK, redact

# What every record carries by itself; the rest was given as ``extra``.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}
_RESERVED = frozenset({"timestamp", "ts_ms", "level", "service", "message", "logger", "exception"})
_SECRET_FIELDS = ("password", "passwd", "secret", "token", "authorization", "api_key")
# These bring handlers and propagation settings of their own, or talk too much at INFO.
_FOREIGN = ("uvicorn", "uvicorn.error", "uvicorn.access", "grpc", "grpc._cython", "asyncio")
_QUIET = {"uvicorn": logging.WARNING, "asyncio": logging.WARNING}


def timestamp(seconds: float) -> str:
    """RFC 3339 in UTC with milliseconds."""
    # To the microsecond first: a float that stands for .123 may lie a hair below it.
    whole, milliseconds = divmod(round(seconds * 1_000_000) // 1_000, 1_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"


def _context(record: logging.LogRecord) -> dict[str, Any]:
    """The ``extra`` fields of a record, without secrets."""
    fields: dict[str, Any] = {}
    for name, value in vars(record).items():
        if name in _STANDARD or name.startswith("_"):
            continue
        if name in _RESERVED:
            name = f"{name}_"
        if any(word in name.lower() for word in _SECRET_FIELDS):
            value = MASK
        fields[name] = value
    return fields


def _plain(value: object) -> str:
    """What JSON does not know, as text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


class JsonFormatter(logging.Formatter):
    """One JSON object on one line. The fields ``always`` are there, empty if nothing is known."""

    def __init__(self, service: str, always: Sequence[str] = ()) -> None:
        super().__init__()
        self._service = service
        self._empty = dict.fromkeys(always, "")

    def format(self, record: logging.LogRecord) -> str:
        """Render a record."""
        line: dict[str, Any] = {
            "timestamp": timestamp(record.created),
            "ts_ms": int(record.created * 1000),
            "level": record.levelname,
            "service": self._service,
            "message": redact(record.getMessage()),
            "logger": record.name,
            **self._empty,
        }
        line.update(_context(record))
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["exception"] = {
                "type": type(error).__name__,
                "message": redact(str(error)),
                "trace": redact("".join(traceback.format_exception(error))),
            }
        return redact(json.dumps(line, default=_plain))


def _one_line(text: str) -> str:
    """Text from elsewhere must not make a line of its own, nor command the terminal."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


class TextFormatter(logging.Formatter):
    """A line for people: time, level, message, context."""

    def format(self, record: logging.LogRecord) -> str:
        """Render a record."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        context = " ".join(
            f"{name}={_one_line(str(value))}" for name, value in _context(record).items()
        )
        text = f"{clock} {record.levelname:<7} {_one_line(record.getMessage())}"
        if context:
            text += f"  [{context}]"
        if record.exc_info and record.exc_info[1] is not None:
            text += "\n" + "".join(traceback.format_exception(record.exc_info[1])).rstrip()
        return redact(text)


class _Stdout(logging.StreamHandler[TextIO]):
    """Writes to whatever stdout is at the time; a reader that went away is no reason to fail."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stdout
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], (BrokenPipeError, ValueError)):
            super().handleError(record)


def configure(
    service: str, level: str = "info", format: str = "json", *, always: Sequence[str] = ()
) -> None:
    """Send every log of this process to stdout, once, in one format. May be called again."""
    handler = _Stdout()
    handler.setFormatter(JsonFormatter(service, always) if format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _Stdout)]:
        root.removeHandler(old)
    root.addHandler(handler)
    threshold = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(threshold)
    logging.captureWarnings(True)
    for name in _FOREIGN:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(max(threshold, _QUIET.get(name, logging.NOTSET)))
