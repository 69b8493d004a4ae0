"""Payloads and results by a handler's signature."""

import enum
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from pydantic import BaseModel

from jobqueue.core.errors import InvalidArgument
from jobqueue.worker.context import Context
from jobqueue.worker.registry import TaskOptions, define


class Color(enum.Enum):
    RED = "red"


@dataclass
class Order:
    id: int
    tags: list[str] = field(default_factory=list)


class Line(msgspec.Struct):
    price: float


class Model(BaseModel):
    x: int


def everything(
    a: int,
    ctx: Context,
    b: str = "b",
    *,
    order: Order | None = None,
    line: Line | None = None,
    model: Model | None = None,
    at: datetime | None = None,
    id: UUID | None = None,
    color: Color = Color.RED,
    raw: bytes = b"",
    numbers: list[int] = [1],  # noqa: B006 - the handler's own default must hold
) -> Order:
    return Order(a)


def test_arguments_come_back_as_the_types_they_are_annotated_with() -> None:
    task = define(everything)
    values: dict[str, Any] = {
        "order": Order(1, ["x"]),
        "line": Line(1.5),
        "model": Model(x=3),
        "at": datetime(2026, 1, 2, tzinfo=UTC),
        "id": uuid4(),
        "color": Color.RED,
        "raw": b"\x00\xff",
    }
    payload = task.encode((7, "c"), values)
    assert msgspec.json.decode(payload)["a"] == 7
    assert task.decode(payload) == {"a": 7, "b": "c", **values}
    assert task.context_parameter == "ctx"


@pytest.mark.parametrize(
    ("args", "kwargs", "field_", "says"),
    [
        ((), {}, "a", "missing; expected `int`"),
        (("1",), {}, "a", "expected `int`, got `str`"),
        ((1, 2), {}, "b", "expected `str`, got `int`"),
        ((1,), {"z": 1}, "z", "unexpected; the arguments are a: `int`"),
        ((1,), {"ctx": 1}, "ctx", "unexpected"),
        ((1, "b", 3), {}, "arguments", "at most 2 by position, got 3"),
        ((1,), {"a": 2}, "a", "given twice"),
        ((1,), {"order": {"id": "x"}}, "order.id", "expected `int`, got `str`"),
        ((1,), {"order": {}}, "order.id", "missing"),
        ((1,), {"order": Order(1, [2])}, "order.tags[0]", "expected `str`, got `int`"),  # type: ignore[list-item]
        ((1,), {"model": {"x": "no"}}, "model", "valid integer"),
        ((1,), {"order": object()}, "order", "`object` cannot be written as JSON"),
    ],
)
def test_a_wrong_argument_is_named(args: Any, kwargs: Any, field_: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        define(everything).encode(args, kwargs)
    assert caught.value.field == field_
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("payload", "field_", "says"),
    [
        (b"", "a", "missing; expected `int`"),
        (b"null", "a", "missing"),
        (b"[1]", "payload", "expected an object of the arguments a: `int`"),
        (b'{"a"', "payload", "not valid JSON"),
        (b"\xff", "payload", "expected an object"),
        (b'{"a": 1.5}', "a", "expected `int`, got `float`"),
        (b'{"a": 1, "zz": 1}', "zz", "unexpected; the arguments are a, b"),
    ],
)
def test_a_wrong_payload_is_explained(payload: bytes, field_: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        define(everything).decode(payload)
    assert caught.value.field == field_
    assert says in caught.value.message


def test_a_body_that_names_its_task_beside_the_arguments() -> None:
    def resize(url: str) -> None: ...

    def report(task: str, url: str) -> None: ...

    body = b'{"task": "image_resize", "url": "u"}'
    assert define(resize).decode(body) == {"url": "u"}
    assert define(report).decode(body) == {"task": "image_resize", "url": "u"}


def test_a_payload_that_is_no_object_is_the_sole_argument() -> None:
    def handle(order: str) -> None: ...

    task = define(handle)
    assert task.decode(b'"process-order-42"') == {"order": "process-order-42"}
    with pytest.raises(InvalidArgument, match="order: expected `str`, got `int`"):
        task.decode(b"3")
    with pytest.raises(InvalidArgument, match="order: not valid JSON"):
        task.decode(b"process-order-42")


def test_an_object_may_be_the_sole_argument_itself() -> None:
    def handle(order: Order) -> None: ...

    task = define(handle)
    assert task.decode(b'{"order": {"id": 1}}') == {"order": Order(1)}
    assert task.decode(b'{"id": 1}') == {"order": Order(1)}
    with pytest.raises(InvalidArgument, match=r"order\.id: expected `int`"):
        task.decode(b'{"order": {"id": "1"}}')
    with pytest.raises(InvalidArgument, match="nonsense: unexpected"):
        task.decode(b'{"nonsense": 1}')


def test_a_handler_of_raw_bytes() -> None:
    def handle(payload: bytes) -> bytes:
        return payload

    task = define(handle)
    assert task.decode(b"\xff not JSON") == {"payload": b"\xff not JSON"}
    assert task.encode((b"\xff",), {}) == b"\xff"
    assert task.encode_result(b"\xfe") == b"\xfe"
    assert task.decode_result(b"\xfe") == b"\xfe"
    with pytest.raises(InvalidArgument, match="payload: expected `bytes`, got `str`"):
        task.encode(("text",), {})
    with pytest.raises(InvalidArgument, match="result: expected `bytes`"):
        task.encode_result("text")


def test_further_keywords_keep_their_type() -> None:
    def handle(a: int, **rest: int) -> None: ...

    task = define(handle)
    assert task.decode(task.encode((1,), {"b": 2})) == {"a": 1, "b": 2}
    with pytest.raises(InvalidArgument, match="b: expected `int`"):
        task.encode((1,), {"b": "x"})


def test_results_come_back_as_the_annotated_type() -> None:
    task = define(everything)
    assert task.decode_result(task.encode_result(Order(1, ["t"]))) == Order(1, ["t"])
    assert task.encode_result(None) is None
    assert task.decode_result(None) is None
    with pytest.raises(InvalidArgument, match=r"result: .* cannot be written as JSON"):
        task.encode_result(object())
    with pytest.raises(InvalidArgument, match=r"result\.id: expected `int`"):
        task.decode_result(b'{"id": "x"}')


def test_what_cannot_be_a_handler_is_refused_at_once() -> None:
    def positional(a: int, /) -> None: ...

    def many(*args: int) -> None: ...

    def generator() -> Any:
        yield 1

    def local() -> None: ...

    def two(a: Context, b: Context) -> None: ...

    refused: list[tuple[Any, str]] = [
        (positional, "'a' must be one that can be passed by name"),
        (many, "'args' must be"),
        (generator, "a generator cannot be a handler"),
        (lambda: None, "a lambda needs a name"),
        (two, "several Context parameters"),
    ]
    for fn, says in refused:
        with pytest.raises(InvalidArgument, match=says):
            define(fn)
    with pytest.raises(InvalidArgument, match="at module level"):
        define(local, options=TaskOptions(executor="process"))
    with pytest.raises(InvalidArgument, match="allowed: auto, process"):
        define(local, options=TaskOptions(executor="fiber"))  # type: ignore[arg-type]
