"""A worker's free slots, counted so that the server never has more of them than are free."""

from __future__ import annotations


class Credits:
    """``free`` counts the slots sent to the server, minus the jobs that came.

    It is below zero when jobs came for slots that a report freed whose answer was lost: the worker
    will free them again, and the server must not get them twice. Slots that come free during a
    drain are offered after it.
    """

    __slots__ = ("_later", "_unsent", "draining", "free")

    def __init__(self) -> None:
        self.free = 0
        self.draining = False
        self._unsent = 0
        self._later = 0

    def grant(self, slots: int) -> None:
        """Add free slots of the worker."""
        if self.draining:
            self._later += slots
        else:
            self._unsent += slots

    @property
    def waiting(self) -> bool:
        """True if there are slots to send."""
        return self._unsent > 0

    def send(self) -> int:
        """Return the slots to put into the next message."""
        slots = self._sent(self._unsent)
        self._unsent = 0
        return slots

    def send_freed(self, freed: int) -> int:
        """Return the slots to put into a report; the server counts them when it is written."""
        return self._sent(freed)

    def _sent(self, slots: int) -> int:
        before, self.free = self.free, self.free + slots
        return max(0, self.free) - max(0, before)

    def not_freed(self, freed: int) -> None:
        """Take back slots of a report that was not written, or perhaps not."""
        self.free -= freed

    def assigned(self, count: int) -> None:
        """Take away the slots of jobs that came."""
        self.free -= count

    def drain(self) -> None:
        """Withdraw all slots; none is offered until ``drained``."""
        self._unsent = 0
        self.draining = True

    def drained(self) -> None:
        """Note that the server has no slot left."""
        self.free = min(self.free, 0)
        self._unsent += self._later
        self._later = 0
        self.draining = False

    def reconnect(self) -> None:
        """Offer all free slots again: a new stream begins without any."""
        self._unsent += max(self.free, 0)
        self.free = min(self.free, 0)  # a debt remains
