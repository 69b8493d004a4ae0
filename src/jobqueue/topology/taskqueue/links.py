"""What lies between the parts: nothing. Tests put something there."""

from __future__ import annotations

from jobqueue.services.protocols import Coordination, Jobs, Queue, Results


class Links:
    """Each part reaches another through one of these, in both designs, at the caller's side."""

    def jobs(self, jobs: Jobs) -> Jobs:
        """To the owner of the jobs."""
        return jobs

    def queue(self, queue: Queue) -> Queue:
        """To the owner of the order."""
        return queue

    def results(self, results: Results) -> Results:
        """To the owner of the outputs."""
        return results

    def coordination(self, coordination: Coordination) -> Coordination:
        """To the coordinator."""
        return coordination


DIRECT = Links()
