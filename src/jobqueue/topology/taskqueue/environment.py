"""Environment variables: what each may be, and how a process reads its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from jobqueue.core.errors import InvalidArgument

T = TypeVar("T")

_HIGHEST_PORT = 65_535
_SHOWN = 60  # characters of a wrong value


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """What a text may be. ``parse`` raises ValueError for anything else."""

    allowed: str
    parse: Callable[[str], T]


@dataclass(frozen=True, slots=True)
class Variable(Generic[T]):
    """One variable. Without a default it is required; an empty text counts as not set."""

    name: str
    kind: Kind[T]
    meaning: str
    default: str | None = None
    fallback: str = ""  # what stands for an empty default, in words

    @property
    def required(self) -> bool:
        """Whether a process does not start without it."""
        return self.default is None


class Values:
    """The variables of one process, parsed."""

    def __init__(self, found: Mapping[str, Any], texts: Mapping[str, str]) -> None:
        self._found = found
        self._texts = texts

    def __getitem__(self, variable: Variable[T]) -> T:
        value: T = self._found[variable.name]
        return value

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Names and texts, as they count."""
        return iter(self._texts.items())


def read(variables: Sequence[Variable[Any]], environ: Mapping[str, str]) -> Values:
    """All of them, or InvalidArgument with each that is missing or wrong."""
    found, texts, wrong = {}, {}, []
    for variable in variables:
        text = environ.get(variable.name, "").strip() or variable.default
        if text is None:
            wrong.append((variable.name, f"is required: {variable.kind.allowed}"))
            continue
        texts[variable.name] = text
        try:
            found[variable.name] = variable.kind.parse(text)
        except ValueError:
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
            wrong.append((variable.name, f"{shown!r} is not allowed: {variable.kind.allowed}"))
    if wrong:
        (name, why), *more = wrong
        raise InvalidArgument(name, "\n".join([why, *(f"{n}: {w}" for n, w in more)]))
    return Values(found, texts)


def number(least: int, most: int) -> Kind[int]:
    """A whole number."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
            raise ValueError
        return int(text)

    return Kind(f"a whole number, {least} to {most}", parse)


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host.strip("[]") or (":" in host and not bracketed):
        raise ValueError
    if not host.isprintable() or any(c.isspace() or c in ",/" for c in host):
        raise ValueError
    if not (port.isascii() and port.isdigit()) or not 1 <= int(port) <= _HIGHEST_PORT:
        raise ValueError
    return text


def _addresses(text: str) -> tuple[str, ...]:
    found = tuple(_address(one.strip()) for one in text.split(","))
    if len(set(found)) != len(found):
        raise ValueError
    return found


def _host(text: str) -> str:
    if not text.isprintable() or any(c.isspace() or c in ",/[]" for c in text):
        raise ValueError
    return text


def choice(*words: str) -> Kind[str]:
    """One of some words, in any case."""

    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError
        return text.lower()

    return Kind(f"one of {', '.join(words)}", parse)


def text(most: int) -> Kind[str]:
    """A name, or nothing."""

    def parse(given: str) -> str:
        if len(given) > most or not given.isprintable():
            raise ValueError
        return given

    return Kind(f"at most {most} printable characters", parse)


PORT = Kind(f"a port, 1 to {_HIGHEST_PORT}; 0 = any free one", number(0, _HIGHEST_PORT).parse)
ADDRESS = Kind("HOST:PORT, such as job:50052", _address)
ADDRESSES = Kind("HOST:PORT,HOST:PORT,… in the order that clients use, each once", _addresses)
HOST = Kind("an address of this machine, such as 0.0.0.0 or 127.0.0.1", _host)
