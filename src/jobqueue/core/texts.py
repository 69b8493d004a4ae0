"""Check the length and the characters of texts that callers choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jobqueue.core.errors import InvalidArgument

QUEUE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
MAX_KEY_LENGTH = 255
MAX_CONCURRENCY_KEY_LENGTH = 200
MAX_TYPE_LENGTH = 200
MAX_LABELS = 32
MAX_LABEL_LENGTH = 255
MAX_LABELS_BYTES = 32 * 1024  # of a job's labels together, so that its event has room for them
MAX_WORKER_ID_LENGTH = 255
MAX_ERROR_FILTER_LENGTH = 1_000

Check = Callable[[str, str, int], None]
"""A function that raises InvalidArgument if a text is not allowed. Its arguments are the field's
name, the text and the largest number of characters."""


def check_text(field: str, text: str, most: int) -> None:
    """Raise InvalidArgument if a text is empty, too long, or cannot be stored."""
    if not 1 <= len(text) <= most:
        raise InvalidArgument(field, f"1 to {most} characters are allowed")
    if "\0" in text:  # PostgreSQL cannot store it
        raise InvalidArgument(field, "must not contain a NUL character")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(
                field, "has a lone surrogate, which cannot be encoded in UTF-8"
            ) from None


def check_printable(field: str, text: str, most: int) -> None:
    """Raise InvalidArgument if a text is empty, too long, or has unprintable characters."""
    if not 1 <= len(text) <= most or not text.isprintable():
        raise InvalidArgument(field, f"must have 1 to {most} printable characters")


def check_labels(field: str, labels: Mapping[str, str], check: Check) -> None:
    """Raise InvalidArgument if labels are too many or too large, or if ``check`` refuses one.

    ``check`` is called with each name and each value; the value of a label may be empty.
    """
    if len(labels) > MAX_LABELS:
        raise InvalidArgument(field, f"at most {MAX_LABELS} labels are allowed")
    for name, value in labels.items():
        check(field, name, MAX_LABEL_LENGTH)
        if value:
            check(field, value, MAX_LABEL_LENGTH)
    size = sum(len(text.encode()) for label in labels.items() for text in label)
    if size > MAX_LABELS_BYTES:
        raise InvalidArgument(
            field,
            f"the labels have {size} bytes together; at most {MAX_LABELS_BYTES} are allowed",
        )
