"""Count a worker's free slots, so that the server never gets more slots than are free."""

from __future__ import annotations


class Credits:
    """Counts the free slots that the worker has sent to the server.

    ``free`` is the number of slots sent minus the jobs that arrived. A report also sends the slots
    that it frees. If its answer is lost, these slots count as not sent, but the server may have
    them and assign jobs to them. Then ``free`` becomes negative, and that many of the next free
    slots are not sent. Slots that become free during a drain are sent after the drain.
    """

    __slots__ = ("_later", "_unsent", "draining", "free")

    def __init__(self) -> None:
        self.free = 0
        self.draining = False
        self._unsent = 0
        self._later = 0

    def grant(self, slots: int) -> None:
        """Add ``slots`` free slots, which the next message or the end of a drain sends."""
        if self.draining:
            self._later += slots
        else:
            self._unsent += slots

    @property
    def waiting(self) -> bool:
        """Return True if there are free slots to send to the server."""
        return self._unsent > 0

    def send(self) -> int:
        """Return the number of slots to put into the next message, and count them as sent."""
        slots = self._sent(self._unsent)
        self._unsent = 0
        return slots

    def send_freed(self, freed: int) -> int:
        """Return the number of freed slots to put into a report, and count them as sent.

        The server counts these slots when it has written the report.
        """
        return self._sent(freed)

    def _sent(self, slots: int) -> int:
        before, self.free = self.free, self.free + slots
        return max(0, self.free) - max(0, before)

    def not_freed(self, freed: int) -> None:
        """Subtract the slots of a report that was not written, or whose answer was lost."""
        self.free -= freed

    def assigned(self, count: int) -> None:
        """Subtract the slots of ``count`` jobs that arrived."""
        self.free -= count

    def drain(self) -> None:
        """Begin a drain: send no slots until ``drained``."""
        self._unsent = 0
        self.draining = True

    def drained(self) -> None:
        """End a drain: the server has no slot left. Send slots again."""
        self.free = min(self.free, 0)
        self._unsent += self._later
        self._later = 0
        self.draining = False

    def reconnect(self) -> None:
        """Send all free slots again, because the server counts no slots for a new stream."""
        self._unsent += max(self.free, 0)
        self.free = min(self.free, 0)  # keep a negative number
