"""Counts the items of a request's lists on the wire, before protobuf builds an object for each.

Two bytes on the wire are enough for an item that takes hundreds in memory. Most messages are too
short, or have too few bytes that could be the tag of an item, to hold too many: only the others are
looked at field by field, and only up to the first item too many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from jobqueue.core.errors import InvalidArgument

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MIN_ITEM_BYTES = 2  # a tag and a length
_MORE = 0x80  # in a byte of a number: another one follows
_MAX_DIGITS = 10  # bytes of a number
_WITH_LENGTH = (
    FieldDescriptor.TYPE_MESSAGE,
    FieldDescriptor.TYPE_STRING,
    FieldDescriptor.TYPE_BYTES,
)
# What else may stand in a message that has to be looked at, before looking costs too much.
_OTHER_FIELDS = 250_000


class Refused:
    """Takes the place of a request that was not built."""

    def __init__(self, error: InvalidArgument) -> None:
        self.error = error


@dataclass(slots=True)
class _Node:
    """A message, and those of its fields that are lists or lead to one."""

    fields: dict[int, _Field] = field(default_factory=dict)


@dataclass(slots=True)
class _Field:
    path: str
    most: int | None = None  # None: no list, only on the way to one
    inside: _Node = field(default_factory=_Node)


@dataclass(frozen=True, slots=True)
class _List:
    """A list whose items take more in memory than on the wire."""

    most: int
    tags: tuple[bytes, bytes]  # the first byte of the tag, as it is written and in a longer form


def counted(
    parse: Callable[[bytes], Any], message: Descriptor, items: Mapping[str, int]
) -> Callable[[bytes], Any]:
    """A parser that answers with ``Refused`` to a message with too many items, or to no message."""
    root = _Node()
    lists = [_add(root, message, path, most) for path, most in items.items()]
    large = [found for found in lists if found is not None]
    shortest = min((found.most * _MIN_ITEM_BYTES for found in large), default=0)
    numbers = [path for path, found in zip(items, lists, strict=True) if found is None]

    def count_and_parse(data: bytes) -> Any:
        try:
            if large and len(data) > shortest and _suspect(data, large):
                _look(data, root)
            built = parse(data)
            for path in numbers:
                _check_numbers(built, path, items[path])
        except InvalidArgument as error:
            return Refused(error)
        except DecodeError:
            return Refused(_unreadable(message))
        return built

    return count_and_parse


def _unreadable(message: Descriptor) -> InvalidArgument:
    return InvalidArgument("request", f"is not a {message.full_name}")


def _too_many(path: str, most: int) -> InvalidArgument:
    return InvalidArgument(path, f"at most {most} in one message")


def _add(root: _Node, message: Descriptor, path: str, most: int) -> _List | None:
    """Put a list into the tree; None for numbers, which take no more room than on the wire."""
    node, kind = root, message
    *parents, name = path.split(".")
    at = ""
    for parent in parents:
        at = f"{at}.{parent}" if at else parent
        step = kind.fields_by_name[parent]
        assert step.message_type is not None
        node = node.fields.setdefault(step.number, _Field(at)).inside
        kind = step.message_type
    found = kind.fields_by_name[name]
    if found.type not in _WITH_LENGTH:
        return None
    node.fields.setdefault(found.number, _Field(path)).most = most
    first = (found.number << 3 | _LENGTH) & 0x7F
    return _List(most, (bytes([first]), bytes([first | _MORE])))


def _suspect(data: bytes, lists: list[_List]) -> bool:
    """Whether there may be too many items in a list: every tag has one of these bytes."""
    return any(
        len(data) > one.most * _MIN_ITEM_BYTES and sum(map(data.count, one.tags)) > one.most
        for one in lists
    )


def _check_numbers(built: Message, path: str, most: int) -> None:
    value: Any = built
    for name in path.split("."):
        value = getattr(value, name)
    if len(value) > most:
        raise _too_many(path, most)


def _look(data: bytes, root: _Node) -> None:
    """Walk over the fields; InvalidArgument at the first item too many."""
    counts: dict[str, int] = {}
    others = 0
    pending = [(root, 0, len(data))]
    while pending:
        node, at, end = pending.pop()
        while at < end:
            tag, at = _number(data, at, end)
            kind = tag & 7
            known = node.fields.get(tag >> 3) if kind == _LENGTH else None
            if kind == _LENGTH:
                size, at = _number(data, at, end)
                begin, at = at, at + size
                if known is not None and known.inside.fields:
                    pending.append((known.inside, begin, min(at, end)))
            elif kind == _VARINT:
                _, at = _number(data, at, end)
            elif kind == _FIXED64:
                at += 8
            elif kind == _FIXED32:
                at += 4
            else:  # groups: no message of ours has one
                raise InvalidArgument("request", "holds a field of an unknown kind")
            if known is not None and known.most is not None:
                counts[known.path] = counts.get(known.path, 0) + 1
                if counts[known.path] > known.most:
                    raise _too_many(known.path, known.most)
            else:
                others += 1
                if others > _OTHER_FIELDS:
                    raise InvalidArgument("request", "holds too many fields")


def _number(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 7 * _MAX_DIGITS:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < _MORE:
            return value, at
        shift += 7
    raise DecodeError("a number that does not end")
