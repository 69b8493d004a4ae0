"""Count the items of a request's lists in its bytes, before protobuf parses the request.

Two bytes of a message can become an item of hundreds of bytes in memory. Most messages are too
short to exceed a limit, or have too few bytes that could be an item's tag. Only the other messages
are scanned field by field, up to the first item above a limit.
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
_MORE = 0x80  # set in a byte of a number if another byte follows
_SHIFTS = range(7, 70, 7)  # of the bytes after the first byte of a number
_WITH_LENGTH = (
    FieldDescriptor.TYPE_MESSAGE,
    FieldDescriptor.TYPE_STRING,
    FieldDescriptor.TYPE_BYTES,
)
# The most fields that are not counted list items: scanning more would need too much time.
_OTHER_FIELDS = 250_000


class RefusedRequest:
    """Replaces a request that the parser refused, and holds the error."""

    def __init__(self, error: InvalidArgument) -> None:
        self.error = without_trace(error)


@dataclass(slots=True)
class _CountedField:
    """Describes a list to count, or a message that contains such a list."""

    path: str
    most: int | None = None  # None: a message that contains a list to count
    inside: _Fields = field(default_factory=dict)


_Fields = dict[int, _CountedField]  # by number


@dataclass(frozen=True, slots=True)
class _List:
    """Describes a list whose items need more bytes in memory than in the message."""

    path: str
    most: int
    tags: tuple[bytes, bytes]  # first byte of the tag, in its usual and its longer form


def counted(
    parse: Callable[[bytes], Any], message: Descriptor, items: Mapping[str, int]
) -> Callable[[bytes], Any]:
    """Wrap ``parse``: return RefusedRequest for too many items in a list, or unreadable bytes.

    ``items`` maps the path of each list in ``message`` to the most items that it may have.
    """
    large: list[_List] = []
    numbers: list[str] = []  # paths of lists that need as many bytes in memory as in the message
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
                candidates = tuple([one.path for one in large if _may_exceed(data, one)])
                if candidates:
                    if candidates not in trees:
                        trees[candidates] = _tree(message, items, candidates)
                    _scan(data, trees[candidates])
            built = parse(data)
            if numbers and isinstance(built, Message):  # taskqueue.v1 checks other requests itself
                for path in numbers:
                    _check_numbers(built, path, items[path])
        except InvalidArgument as error:
            return RefusedRequest(error)
        except DecodeError:
            unreadable = f"is not a valid {message.full_name}"
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


def _tree(message: Descriptor, items: Mapping[str, int], candidates: Iterable[str]) -> _Fields:
    """Return the fields to scan: the ``candidates``, and the messages that contain these lists.

    ``candidates`` are the paths of lists that may have too many items.
    """
    root: _Fields = {}
    for candidate in candidates:
        at, fields = "", root
        for name in candidate.split("."):
            at = f"{at}.{name}" if at else name
            found = fields.setdefault(_field(message, at).number, _CountedField(at, items.get(at)))
            fields = found.inside
    return root


def _may_exceed(data: bytes, one: _List) -> bool:
    """Return True if the list may have too many items.

    The bytes that could begin an item's tag are counted; some of them may be other data.
    """
    return len(data) > one.most * _MIN_ITEM_BYTES and sum(map(data.count, one.tags)) > one.most


def _check_numbers(built: Message, path: str, most: int) -> None:
    value: Any = built
    for name in path.split("."):
        value = getattr(value, name)
    if len(value) > most:
        raise _too_many(path, most)


def _scan(data: bytes, root: _Fields) -> None:
    """Scan the fields of a message. Raise InvalidArgument at the first item above a limit."""
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
            else:  # a group: our messages have no groups
                raise InvalidArgument("request", "contains a field of an unknown kind")
            if known is not None and known.most is not None:
                count = counts[known.path] = counts.get(known.path, 0) + 1
                if count > known.most:
                    raise _too_many(known.path, known.most)
            else:
                others += 1
                if others > _OTHER_FIELDS:
                    raise InvalidArgument("request", "contains too many fields")


def _number(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = data[at] & 0x7F if at < end else 0
    for shift in _SHIFTS:
        if at >= end or data[at] < _MORE:
            break
        at += 1
        value |= (data[at] & 0x7F) << shift if at < end else 0
    if at >= end or data[at] >= _MORE:
        raise DecodeError("a number continues after the end of the message")
    return value, at + 1
