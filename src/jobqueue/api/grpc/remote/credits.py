"""Free slots as a worker's remote link counts them: never more at the server than are free."""

from __future__ import annotations


class Credits:
    """``free`` is what the server may still assign: slots sent to it minus jobs that came.

    It is below zero when jobs came for slots that were freed by a report whose answer was lost:
    the worker will free them again, and that must not reach the server twice. While a drain is
    under way nothing is offered; what comes free then is offered after it.
    """

    __slots__ = ("_later", "_unsent", "draining", "free")

    def __init__(self) -> None:
        self.free = 0
        self.draining = False
        self._unsent = 0
        self._later = 0

    def grant(self, slots: int) -> None:
        """The worker has more free slots."""
        if self.draining:
            self._later += slots
        else:
            self._unsent += slots

    @property
    def waiting(self) -> bool:
        """Whether there are slots to send."""
        return self._unsent > 0

    def send(self) -> int:
        """Slots to put into the next message."""
        slots = self._sent(self._unsent)
        self._unsent = 0
        return slots

    def send_freed(self, freed: int) -> int:
        """Slots to put into a report; they count at the server when it is written."""
        return self._sent(freed)

    def _sent(self, slots: int) -> int:
        before, self.free = self.free, self.free + slots
        return max(0, self.free) - max(0, before)

    def not_freed(self, freed: int) -> None:
        """The report was not written, or nobody knows."""
        self.free -= freed

    def assigned(self, count: int) -> None:
        """Jobs came."""
        self.free -= count

    def drain(self) -> None:
        """Withdraw everything; nothing is offered until ``drained``."""
        self._unsent = 0
        self.draining = True

    def drained(self) -> None:
        """The server has no slot left."""
        self.free = min(self.free, 0)
        self._unsent += self._later
        self._later = 0
        self.draining = False

    def reconnect(self) -> None:
        """The server has forgotten every slot: offer what is free again."""
        self._unsent += max(self.free, 0)
        self.free = min(self.free, 0)  # what is owed stays owed
