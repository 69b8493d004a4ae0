"""Which store wrote a record of the event stream, and whose records a store may go on from.

A store draws an id when it is made. One that is rebuilt from a record takes over the id that it
finds there, under a new generation: readers see the same source, and the lost store, should it
come back, is told apart.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

FIRST = "1"
"""The generation of a store that was not rebuilt."""

UNNAMED = "unnamed"
"""Among generations: the records of versions that did not name their store."""

_GENERATION = re.compile(r"(\d{1,9})(?:-[0-9a-f]+)?")


def new_store_id() -> str:
    """An id that no other store has."""
    return secrets.token_hex(6)


@dataclass(frozen=True, slots=True)
class Writer:
    """Who wrote a record, as it says itself. Records of earlier versions do not say."""

    store: str = ""
    generation: str = UNNAMED

    def __str__(self) -> str:
        if not self.store:
            return "a store of an earlier version, which did not name itself"
        return f"store {self.store}, generation {self.generation}"


@dataclass(frozen=True, slots=True)
class Identity:
    """A store, for readers of its records."""

    store: str
    generation: str = FIRST
    continues: frozenset[str] = frozenset()  # the generations that it was rebuilt from

    def goes_on_from(self, writer: Writer) -> bool:
        """Whether this store may write after a record of that writer."""
        if writer.store not in ("", self.store):
            return False
        return writer.generation == self.generation or writer.generation in self.continues

    @property
    def rebuilt(self) -> bool:
        """Whether it was made from a record."""
        return self.generation != FIRST

    @property
    def kept(self) -> str:
        """``continues`` as stores keep it."""
        return " ".join(sorted(self.continues))


def identity_of(store: str, generation: str, kept: str) -> Identity:
    """An identity as a store kept it."""
    return Identity(store, generation, frozenset(kept.split()))


def successor(store: str, generations: Iterable[str]) -> Identity:
    """Who a store becomes that is rebuilt from these generations' records; "": nobody named it.

    The generation has a random part: two stores that are rebuilt from one record are not the same.
    """
    seen = frozenset(generations)
    number = 1 + max((_number(one) for one in seen), default=1)
    return Identity(store or new_store_id(), f"{number}-{secrets.token_hex(4)}", seen)


def _number(generation: str) -> int:
    found = _GENERATION.fullmatch(generation)
    return int(found[1]) if found else 1
