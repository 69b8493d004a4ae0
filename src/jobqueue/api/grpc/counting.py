"""Count the items of a request's lists on the wire, before protobuf builds an object for each.

Two bytes on the wire can become an item of hundreds of bytes in memory. Most messages are too short
for too many items, or have too few bytes that could be an item's tag. Only the others are walked
over field by field, up to the first item too many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from jobqueue.core.errors import InvalidArgument, without_trace

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MIN_ITEM_BYTES = 2  # a tag and a length
_MORE = 0x80  # in a byte of a number: another one follows
_SHIFTS = range(7, 70, 7)  # of the bytes of a number after its first
_WITH_LENGTH = (
    FieldDescriptor.TYPE_MESSAGE,
    FieldDescriptor.TYPE_STRING,
    FieldDescriptor.TYPE_BYTES,
)
# The most fields beside the counted ones: counting a message of more would take too long.
_OTHER_FIELDS = 250_000


class RefusedRequest:
    """Takes the place of a request that was not built."""

    def __init__(self, error: InvalidArgument) -> None:
        self.error = without_trace(error)


@dataclass(slots=True)
class _CountedField:
    """A list to count, or a message that holds one."""

    path: str
    most: int | None = None  # None: not a list, but a message that holds one
    inside: _Fields = field(default_factory=dict)


_Fields = dict[int, _CountedField]  # by number


@dataclass(frozen=True, slots=True)
class _List:
    """A list whose items take more bytes in memory than on the wire."""

    path: str
    most: int
    tags: tuple[bytes, bytes]  # the first byte of the tag, as it is written and in a longer form


def counted(
    parse: Callable[[bytes], Any], message: Descriptor, items: Mapping[str, int]
) -> Callable[[bytes], Any]:
    """Return a parser that gives ``RefusedRequest`` for too many items, or unreadable bytes."""
    large: list[_List] = []
    numbers: list[str] = []  # paths of lists that take as much in memory as on the wire
    for path, most in items.items():
        found = _field(message, path)
        if found.type in _WITH_LENGTH:
            first = (found.number << 3 | _LENGTH) & 0x7F
            large.append(_List(path, most, (bytes([first]), bytes([first | _MORE]))))
        else:
            numbers.append(path)
    shortest = min((found.most * _MIN_ITEM_BYTES for found in large), default=0)
    trees: dict[tuple[str, ...], _Fields] = {}

    def count_and_parse(data: bytes) -> Any:
        try:
            if large and len(data) > shortest:
                suspects = tuple([one.path for one in large if _suspect(data, one)])
                if suspects:
                    if suspects not in trees:
                        trees[suspects] = _tree(message, items, suspects)
                    _look(data, trees[suspects])
            built = parse(data)
            if numbers and isinstance(built, Message):  # taskqueue.v1 refuses others itself
                for path in numbers:
                    _check_numbers(built, path, items[path])
        except InvalidArgument as error:
            return RefusedRequest(error)
        except DecodeError:
            unreadable = f"is not a {message.full_name}"
            return RefusedRequest(InvalidArgument("request", unreadable))
        return built

    return count_and_parse


def _too_many(path: str, most: int) -> InvalidArgument:
    return InvalidArgument(path, f"at most {most} in one message")


def _field(message: Descriptor, path: str) -> FieldDescriptor:
    *parents, name = path.split(".")
    for parent in parents:
        held = message.fields_by_name[parent].message_type
        assert held is not None
        message = held
    return message.fields_by_name[name]


def _tree(message: Descriptor, items: Mapping[str, int], suspects: Iterable[str]) -> _Fields:
    """Return the fields to walk over: these lists, and the messages that hold them."""
    root: _Fields = {}
    for suspect in suspects:
        at, fields = "", root
        for name in suspect.split("."):
            at = f"{at}.{name}" if at else name
            found = fields.setdefault(_field(message, at).number, _CountedField(at, items.get(at)))
            fields = found.inside
    return root


def _suspect(data: bytes, one: _List) -> bool:
    """Return True if a list may have too many items: each item's tag begins with such a byte."""
    return len(data) > one.most * _MIN_ITEM_BYTES and sum(map(data.count, one.tags)) > one.most


def _check_numbers(built: Message, path: str, most: int) -> None:
    value: Any = built
    for name in path.split("."):
        value = getattr(value, name)
    if len(value) > most:
        raise _too_many(path, most)


def _look(data: bytes, root: _Fields) -> None:
    """Walk over the fields; raise InvalidArgument at the first item too many."""
    counts: dict[str, int] = {}
    others = 0
    pending = [(root, 0, len(data))]
    while pending:
        fields, at, end = pending.pop()
        while at < end:
            tag = data[at]
            at += 1
            if tag >= _MORE:
                tag, at = _number(data, at - 1, end)
            kind = tag & 7
            known = None
            if kind == _LENGTH:
                size = data[at] if at < end else _MORE
                at += 1
                if size >= _MORE:
                    size, at = _number(data, at - 1, end)
                known = fields.get(tag >> 3)
                if known is not None and known.inside:
                    pending.append((known.inside, at, min(at + size, end)))
                at += size
            elif kind == _VARINT:
                _, at = _number(data, at, end)
            elif kind == _FIXED64:
                at += 8
            elif kind == _FIXED32:
                at += 4
            else:  # groups: no message of ours has one
                raise InvalidArgument("request", "holds a field of an unknown kind")
            if known is not None and known.most is not None:
                count = counts[known.path] = counts.get(known.path, 0) + 1
                if count > known.most:
                    raise _too_many(known.path, known.most)
            else:
                others += 1
                if others > _OTHER_FIELDS:
                    raise InvalidArgument("request", "holds too many fields")


def _number(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = data[at] & 0x7F if at < end else 0
    for shift in _SHIFTS:
        if at >= end or data[at] < _MORE:
            break
        at += 1
        value |= (data[at] & 0x7F) << shift if at < end else 0
    if at >= end or data[at] >= _MORE:
        raise DecodeError("a number that does not end")
    return value, at + 1
