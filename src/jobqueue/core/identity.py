"""Identify the store that wrote an event into the event stream.

A store draws a random id when it is created. A store that is rebuilt from a stream uses the id in
the stream's records, with a new generation. Readers of the stream then see the same source, and can
distinguish the lost store from the rebuilt store if the lost store comes back.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

FIRST = "1"
"""The generation of a store that was not rebuilt."""

UNNAMED = "unnamed"
"""The generation of records from old versions of jobqueue, whose records do not name a store."""

_GENERATION = re.compile(r"(\d{1,9})(?:-[0-9a-f]+)?")


def new_store_id() -> str:
    return secrets.token_hex(6)


@dataclass(frozen=True, slots=True)
class Writer:
    """The store that wrote a record, as named in the record.

    ``store`` is empty for records of earlier versions, which do not name their store.
    """

    store: str = ""
    generation: str = UNNAMED

    def __str__(self) -> str:
        if not self.store:
            return "a store of an earlier version, which did not name itself"
        return f"store {self.store}, generation {self.generation}"


@dataclass(frozen=True, slots=True)
class Identity:
    """The id and generation that a store writes into its records in the event stream."""

    store: str
    generation: str = FIRST
    continues: frozenset[str] = frozenset()  # the generations that it was rebuilt from

    def goes_on_from(self, writer: Writer) -> bool:
        """Return True if this store may append records after a record of ``writer``."""
        if writer.store not in ("", self.store):
            return False
        return writer.generation == self.generation or writer.generation in self.continues

    @property
    def rebuilt(self) -> bool:
        return self.generation != FIRST

    @property
    def kept(self) -> str:
        """Return ``continues`` as a text, the form in which stores keep it."""
        return " ".join(sorted(self.continues))


def identity_of(store: str, generation: str, kept: str) -> Identity:
    return Identity(store, generation, frozenset(kept.split()))


def successor(store: str, generations: Iterable[str]) -> Identity:
    """Return the identity of a store that is rebuilt from the records of these generations.

    ``store`` is the id that the records name, or empty if the records name no store. The new
    generation has a random part, so that two stores rebuilt from one stream are different.
    """
    seen = frozenset(generations)
    number = 1 + max((_number(one) for one in seen), default=1)
    return Identity(store or new_store_id(), f"{number}-{secrets.token_hex(4)}", seen)


def _number(generation: str) -> int:
    found = _GENERATION.fullmatch(generation)
    return int(found[1]) if found else 1
