"""Make job specs from command-line arguments and files: payloads, labels and JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import JobSpec
from jobqueue.core.unique import EXISTING, UNFINISHED, UniqueKey
from jobqueue.documents import refuse_constant

# The server has its own limit. This limit protects the memory after a mistake like `@/dev/zero`.
MAX_INPUT_BYTES = 64 << 20
_LINE_FIELDS = {
    "idempotency_key" if name == "key" else name: kind
    for name, kind in get_type_hints(JobSpec).items()
    if name not in {"payload", "run_at", "key_owner"}
}


def read_payload(argument: str) -> bytes:
    """Return the payload that an argument names.

    ``-`` means stdin, and ``@FILE`` means a file. Any other argument is the payload itself.
    """
    if argument == "-":
        return _bounded(sys.stdin.buffer.read(MAX_INPUT_BYTES + 1), "stdin")
    if argument.startswith("@"):
        name = argument[1:]
        try:
            with Path(name).open("rb") as file:
                return _bounded(file.read(MAX_INPUT_BYTES + 1), name)
        except OSError as error:
            raise InvalidArgument("PAYLOAD", f"cannot read {name!r}: {error.strerror}") from None
    return argument.encode(errors="surrogateescape")


def _bounded(data: bytes, name: str) -> bytes:
    if len(data) > MAX_INPUT_BYTES:
        raise InvalidArgument(
            "PAYLOAD", f"{name} is larger than the limit of {MAX_INPUT_BYTES} bytes"
        )
    return data


def parse_labels(items: Sequence[str]) -> dict[str, str]:
    """Return a mapping of labels from texts like ``name=value``."""
    labels: dict[str, str] = {}
    for item in items:
        name, sep, value = item.partition("=")
        if not sep or not name:
            raise InvalidArgument("--label", f"{item!r} is not NAME=VALUE")
        labels[name] = value
    return labels


def read_lines(file: Path, queue: str) -> Iterator[tuple[int, JobSpec]]:
    """Yield the jobs in a JSON lines file, each with its line number.

    ``queue`` is the queue of jobs that name no queue. The file ``-`` is stdin.
    """
    try:
        with file.open("rb") if str(file) != "-" else sys.stdin.buffer as stream:
            number = 0
            while line := stream.readline(MAX_INPUT_BYTES + 1):
                number += 1
                if len(line) > MAX_INPUT_BYTES:
                    raise InvalidArgument(
                        f"line {number}", f"is longer than the limit of {MAX_INPUT_BYTES} bytes"
                    )
                if line.strip():
                    yield number, parse_line(line, number, queue)
    except OSError as error:
        raise InvalidArgument("--batch", f"cannot read {str(file)!r}: {error.strerror}") from None


class _UniqueLine(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    scope: str = UNFINISHED
    period: float | None = None
    on_conflict: str = EXISTING


_LINE_FIELDS["unique"] = _UniqueLine | None


def parse_line(line: bytes, number: int, queue: str) -> JobSpec:
    """Return the job spec in a line of JSON.

    The line must be an object with the field ``payload``, and may have the other fields of a job.
    Raise InvalidArgument with the line number if the line is anything else.
    """
    where = f"line {number}"
    try:
        body: Any = json.loads(line, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(where, f"is not JSON: {error}") from None
    if not isinstance(body, dict) or "payload" not in body:
        raise InvalidArgument(where, 'must be an object with a "payload"')
    payload = json.dumps(body.pop("payload"), ensure_ascii=False, separators=(",", ":"))
    for name, value in body.items():
        kind = _LINE_FIELDS.get(name)
        if kind is None:
            raise InvalidArgument(
                where, f"unknown field {name!r}; allowed: payload, {', '.join(_LINE_FIELDS)}"
            )
        try:
            body[name] = msgspec.convert(value, kind)
        except msgspec.ValidationError as error:  # Expected `int`, got `str`
            raise InvalidArgument(where, f"{name}: {str(error).replace('`', '')}") from None
    key = body.pop("idempotency_key", None)
    if (unique := body.get("unique")) is not None:
        body["unique"] = UniqueKey(**msgspec.structs.asdict(unique))
    return JobSpec(payload=payload.encode(), key=key, **{"queue": queue, **body})
