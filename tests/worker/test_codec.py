"""Payloads and results by a handler's signature."""

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, SupportsFloat, TypedDict
from uuid import UUID, uuid4

import msgspec
import pytest
from pydantic import BaseModel, model_validator

from jobqueue.core.errors import InvalidArgument
from jobqueue.tasks.context import Context
from jobqueue.tasks.task import TaskDefinition, TaskOptions, define


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
        (positional, "'a' cannot be passed by name"),
        (many, "'args' cannot be passed by name"),
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


class Point(TypedDict):
    x: int


class Scores(msgspec.Struct):
    values: list[float]


@dataclass
class Tree:
    branches: list["Tree"]


class Opaque:
    """A type that JSON cannot express."""


def returning(annotation: Any) -> TaskDefinition:
    def measure(): ...

    measure.__annotations__ = {"return": annotation}
    return define(measure)


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (int, "x", r"result: expected `int`, got `str`; the annotation says `int`"),
        (int, True, r"result: expected `int`, got `bool`"),
        (int, None, r"result: expected `int`, got `None`"),
        (None, 1, r"result: expected `None`, got `int`; the annotation says `None`"),
        (bytes, None, r"result: expected `bytes`, got `NoneType`"),
        (dict[str, str], {"a": 1}, r"result\[\.\.\.\]: expected `str`.*says `dict\[str, str\]`"),
        (Order, Order("x"), r"result\.id: expected `int`, got `str`; the annotation says `Order`"),  # type: ignore[arg-type]
        (list[Order], [Order(1), Order("x")], r"result\[1\]\.id: expected `int`"),  # type: ignore[arg-type]
        (Point, {"x": "1"}, r"result\.x: expected `int`, got `str`"),
        (Annotated[int, msgspec.Meta(ge=0)], -1, r"result: expected `int` >= 0"),
    ],
)
def test_a_result_that_is_not_what_the_annotation_says_is_refused(
    annotation: Any, value: Any, said: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"^task 'measure': {said}"):
        returning(annotation).encode_result(value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Any, None),
        (object, 3),
        (None, None),
        (int | None, None),
        (float, 1),
        (list[int], (1, 2)),
        (Order, {"id": 1, "tags": []}),
        (Point, {"x": 1}),
        (Scores, Scores([1.0])),
        (str, "null"),
        (Opaque, None),
        (Iterator[int], [1]),
        (dict[str, object], {"a": None}),
        (list[SupportsFloat], [1.5]),
        (Tree, Tree([Tree([])])),
    ],
)
def test_a_result_that_can_be_read_by_the_annotation_is_taken(annotation: Any, value: Any) -> None:
    task = returning(annotation)
    raw = task.encode_result(value)
    assert raw is None if value is None else raw


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have_are_refused_by_their_place(number: float) -> None:
    def plot(x: float, ys: list[float] | None = None, more: Any = None) -> Any: ...

    task = define(plot)
    said = f"{number} cannot be written as JSON"
    for arguments, place in [
        ((number,), "x"),
        ((1.0, [1.0, number]), r"ys\[1\]"),
        ((1.0, None, {"a": [Scores([number])]}), r"more\.a\[0\]\.values\[0\]"),
    ]:
        with pytest.raises(InvalidArgument, match=f"^{place}: {said}"):
            task.encode(arguments, {})
    with pytest.raises(InvalidArgument, match=rf"^task 'plot': result\.a\[1\]: {said}"):
        task.encode_result({"a": (None, number)})
    assert task.encode((1.0, None, [None, "null"]), {})


def test_a_lost_number_is_not_blamed_on_the_annotation() -> None:
    with pytest.raises(InvalidArgument, match="result: nan cannot be written"):
        returning(float).encode_result(math.nan)


def test_a_model_whose_validator_does_not_bear_none_can_be_a_result() -> None:
    class Renamed(BaseModel):
        x: int

        @model_validator(mode="before")
        @classmethod
        def rename(cls, data: Any) -> Any:
            return {"x": data.get("y", data.get("x"))}

    def build() -> Renamed: ...  # type: ignore[empty-body]

    build.__annotations__["return"] = Renamed
    task = define(build)
    assert task.decode_result(task.encode_result(Renamed(x=1))) == Renamed(x=1)
    with pytest.raises(InvalidArgument):
        task.encode_result(["not", None])


def test_json_that_is_written_already_stays_as_it_is() -> None:
    def build() -> Any: ...

    value = {"a": msgspec.Raw(b'{"b": null}'), "c": None}
    assert define(build).encode_result(value) == b'{"a":{"b": null},"c":null}'
