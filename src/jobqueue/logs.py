"""Write the logs of jobqueue and of other libraries to stdout, with Python's logging.

Lines are JSON for programs, or text for people at a terminal. ``extra={"job_id": ...}`` adds fields
to a line; lines that a handler logs get the fields of the handler's job. Passwords in URLs are
masked in all lines.
"""

from __future__ import annotations

import errno
import json
import logging
import logging.handlers
import os
import stat
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from types import TracebackType
from typing import Any, Literal, TextIO

from jobqueue.core.attempt import current_attempt
from jobqueue.core.errors import InvalidArgument
from jobqueue.redaction import MASK, redact

ErrorInfo = tuple[type[BaseException], BaseException, TracebackType | None]

AUDIT = "jobqueue.audit"  # the logger of access/audit.py

# The attributes of every record; others come from ``extra``.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}
_RESERVED = frozenset({"timestamp", "ts_ms", "level", "service", "message", "logger", "exception"})
_SECRET_FIELDS = ("password", "passwd", "secret", "token", "authorization", "api_key")
# These loggers have their own handlers and propagation settings, or write too many lines at INFO.
_FOREIGN = ("uvicorn", "uvicorn.error", "uvicorn.access", "grpc", "grpc._cython", "asyncio")
_QUIET = {"uvicorn": logging.WARNING, "asyncio": logging.WARNING}
# The attribute with names of fields that a text line omits, because the message contains them.
IN_MESSAGE = "_in_message"
_RAW_TRACE = "_raw_trace"  # the traceback; ``exc_text`` has it for other formatters
_RESET, _DIM = "\x1b[0m", "\x1b[2m"
_COLOURS = {
    logging.DEBUG: _DIM,
    logging.WARNING: "\x1b[33m",  # yellow
    logging.ERROR: "\x1b[31m",  # red
    logging.CRITICAL: "\x1b[1;31m",
}


def timestamp(seconds: float) -> str:
    """Format seconds since the epoch by RFC 3339, in UTC with milliseconds."""
    # Rounded to the microsecond first: the float for .123 may be a little less.
    whole, milliseconds = divmod(round(seconds * 1_000_000) // 1_000, 1_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"


def _context(record: logging.LogRecord) -> dict[str, Any]:
    """Return the ``extra`` fields of a record, with secrets masked.

    Fields of the audit log are not masked. They contain names of callers and objects, but never a
    credential; with masking, a worker named "token=x" could hide its name.
    """
    exact = record.name == AUDIT
    fields: dict[str, Any] = {}
    for name, value in vars(record).items():
        if name in _STANDARD or name.startswith("_"):
            continue
        if name in _RESERVED:
            name = f"{name}_"
        if not exact:
            value = MASK if _names_secret(name) else _masked(value)
        fields[name] = value
    return fields


def _plain(value: object) -> str:
    """Convert a value that JSON cannot represent to text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _masked(value: Any) -> Any:
    """Mask the secrets in a value; in a list or mapping, mask each item on its own."""
    if isinstance(value, Mapping):
        return {
            name: MASK if _names_secret(str(name)) else _masked(item)
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_masked(item) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return redact(_plain(value))


def _names_secret(name: str) -> bool:
    return any(word in name.lower() for word in _SECRET_FIELDS)


def _trace(record: logging.LogRecord) -> str:
    """Return the traceback of a record, or the ``details`` of ``write``, or an empty text."""
    if raw := getattr(record, _RAW_TRACE, ""):
        return str(raw)
    if record.exc_info and record.exc_info[1] is not None:
        return "".join(traceback.format_exception(*record.exc_info)).rstrip()
    return record.exc_text or ""


def _exception(record: logging.LogRecord) -> dict[str, str] | None:
    trace = _trace(record)
    if not trace:
        return None
    if not record.exc_info or (error := record.exc_info[1]) is None:
        return {"trace": redact(trace)}
    try:
        message = str(error)
    except Exception:
        message = "(its message cannot be shown)"
    return {"type": type(error).__name__, "message": redact(message), "trace": redact(trace)}


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object on one line.

    Every line has the fields in ``always``; a field without a value is empty.
    """

    def __init__(self, service: str, always: Sequence[str] = ()) -> None:
        super().__init__()
        self._service = service
        self._empty = dict.fromkeys(always, "")

    def format(self, record: logging.LogRecord) -> str:
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
        if (exception := _exception(record)) is not None:
            line["exception"] = exception
        return json.dumps(line, default=_plain)


def one_line(text: str) -> str:
    """Escape unprintable characters, so that a text cannot add log lines or control a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def _value(text: str) -> str:
    """Format a field's value for a text line; quote it if it could look like several fields."""
    quoted = any(c in text for c in ' =[]"')
    return one_line(json.dumps(text, ensure_ascii=False) if quoted else text)


def _indented(text: str) -> str:
    """Indent every line of a text, and mask secrets."""
    return "\n".join(f"    {one_line(redact(line))}" for line in text.splitlines())


class TextFormatter(logging.Formatter):
    """Formats a record as a text line for people: time, level, message and fields.

    A traceback follows on indented lines.
    """

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        said = getattr(record, IN_MESSAGE, ())
        context = " ".join(
            f"{name}={_value(str(value))}"
            for name, value in _context(record).items()
            if name not in said
        )
        level = self._paint(f"{record.levelname:<7}", _COLOURS.get(record.levelno, ""))
        text = f"{self._paint(clock, _DIM)} {level} {one_line(redact(record.getMessage()))}"
        if context:
            text += self._paint(f"  [{context}]", _DIM)
        if trace := _trace(record):
            text += f"\n{_indented(trace)}"
        return text

    def _paint(self, text: str, colour: str) -> str:
        return f"{colour}{text}{_RESET}" if self._colour and colour else text


class JobFields(logging.Filter):
    """A logging filter that adds the fields of the current job to lines that its handler logs.

    To get these fields in your own logging handler, call ``handler.addFilter(JobFields())``.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the job's fields that the record lacks, and return True for every record."""
        attempt = current_attempt()
        if attempt is not None:
            for name, value in attempt.log_fields().items():
                if not hasattr(record, name):
                    setattr(record, name, value)
        return True


def write(
    log: logging.Logger,
    level: int,
    message: str,
    *,
    extra: Mapping[str, Any],
    error: ErrorInfo | None = None,
    details: str = "",
) -> None:
    """Log one message, with the traceback of ``error``, or with ``details`` in its place.

    Any formatter shows ``details`` like a traceback. Because the standard formatter does not escape
    texts, the message is reduced to one line, and the lines of ``details`` are indented. If a
    logging handler of the user's program raises, the line is lost, but no exception reaches the
    caller.
    """
    if not log.isEnabledFor(level):
        return
    record = log.makeRecord(log.name, level, "", 0, one_line(message), (), error, extra=extra)
    trace = _trace(record) if error is not None else details
    if trace:
        setattr(record, _RAW_TRACE, trace)
        record.exc_text = _indented(trace)
    try:
        log.handle(record)
    except Exception:
        logging.Handler().handleError(record)  # writes the error to stderr, as logging does


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of a process's log, which the process passes on to the processes it starts."""

    service: str
    level: str
    format: Literal["json", "text"]
    colour: bool = False
    always: tuple[str, ...] = ()


class _Stdout(logging.StreamHandler[TextIO]):
    """Writes log lines to the current ``sys.stdout``; a closed stdout raises no error."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(sys.stdout)
        self.setup = setup
        self.addFilter(JobFields())
        if setup.format == "json":
            self.setFormatter(JsonFormatter(setup.service, setup.always))
        else:
            self.setFormatter(TextFormatter(colour=setup.colour))

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stdout
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], (BrokenPipeError, ValueError)):
            super().handleError(record)


# Without O_NONBLOCK, opening a pipe would block the server until the pipe has a reader.
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK


def check_audit_file(file: str) -> None:
    """Check that the audit log can be written to ``file``, without creating or changing the file.

    Raises InvalidArgument if the audit log cannot be written.
    """
    try:
        number = os.open(file, _APPEND)
    except FileNotFoundError:
        folder = os.path.dirname(os.path.abspath(file))
        if os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
            return
        raise InvalidArgument("log.audit_file", f"{file}: cannot be created in {folder}") from None
    except OSError as error:
        raise _unusable(file, error) from None
    try:
        _check_kind_and_owner(number)
    except OSError as error:
        raise _unusable(file, error) from None
    finally:
        os.close(number)


def _check_kind_and_owner(number: int) -> None:
    """Raise OSError for a file of another user, who may change the file, and for a pipe.

    A pipe keeps no lines, and blocks the server when the pipe is full.
    """
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file")
    owner, ours = found.st_uid, os.geteuid()
    if owner != ours:
        raise PermissionError(errno.EPERM, f"belongs to user {owner}; must belong to user {ours}")


def _unusable(file: str, error: OSError) -> InvalidArgument:
    return InvalidArgument("log.audit_file", f"{file}: {error.strerror or error}")


class _AuditFile(logging.handlers.WatchedFileHandler):
    """Writes the audit log to a file; creates a new file when logrotate has moved the old file."""

    def __init__(self, file: str, service: str) -> None:
        super().__init__(file, encoding="utf-8")
        self.setFormatter(JsonFormatter(service))

    def _open(self) -> TextIOWrapper:
        # Only the owner may read the file, regardless of the umask.
        file = os.open(self.baseFilename, _APPEND | os.O_CREAT, 0o600)
        try:
            _check_kind_and_owner(file)
            os.fchmod(file, 0o600)
            return open(file, "a", encoding="utf-8")
        except OSError:
            os.close(file)
            raise

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # the new file cannot be opened; the audited call must not fail
            self.handleError(record)


def configure(
    service: str,
    level: str = "info",
    format: str = "json",
    *,
    always: Sequence[str] = (),
    audit_file: str = "",
) -> None:
    """Write all logs of this process to stdout in one format. May be called again.

    ``format`` is ``json``, ``text`` or ``auto``: text if stdout is a terminal, else JSON. Text is
    coloured on a terminal, unless NO_COLOR is set. The audit log is written to ``audit_file``, if
    given. ``always`` names fields that every JSON line has.
    """
    terminal = _on_terminal()
    as_text = format == "text" or (format == "auto" and terminal)
    colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    apply(Setup(service, level, "text" if as_text else "json", colour, tuple(always)))
    _audit_to(audit_file, service)


def configure_unless_done(service: str) -> None:
    """Write the log to stdout, unless the program has configured logging itself."""
    if not logging.getLogger("jobqueue").hasHandlers():
        configure(service, format="auto")


def apply(setup: Setup) -> None:
    """Write the log of this process with the given settings."""
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _Stdout)]:
        root.removeHandler(old)
    root.addHandler(_Stdout(setup))
    threshold = logging.getLevelNamesMapping()[setup.level.upper()]
    root.setLevel(threshold)
    logging.captureWarnings(True)
    for name in _FOREIGN:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(max(threshold, _QUIET.get(name, logging.NOTSET)))


def _audit_to(file: str, service: str) -> None:
    """Append the audit log to a file that only its owner may read, if a file is named."""
    audit = logging.getLogger(AUDIT)
    for old in [h for h in audit.handlers if isinstance(h, _AuditFile)]:
        audit.removeHandler(old)
        old.close()
    # The audit log has all its lines, regardless of the level of the log.
    audit.setLevel(logging.INFO)
    audit.propagate = not file
    if file:
        try:
            audit.addHandler(_AuditFile(file, service))
        except OSError as error:
            raise _unusable(file, error) from None


def applied() -> Setup | None:
    """Return the settings of this process's log; None if the program configures its own log."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Stdout):
            return handler.setup
    return None


def _on_terminal() -> bool:
    try:
        return sys.stdout.isatty()
    except (AttributeError, ValueError):  # stdout is None or closed
        return False
