"""Which server gets a call. This side decides it alone: nodes forward nothing to each other."""

from __future__ import annotations

import random
from collections.abc import Sequence

from jobqueue.core.errors import InvalidArgument
from jobqueue.services.owners import owner_index
from jobqueue.topology.connect import Address, parse_url

MAX_NODES = 1_000


class Route:
    """Indexes into the targets, which keep their order for as long as the client lives.

    Behind a gateway there is one target, and so one answer to every question.
    """

    def __init__(self, targets: Sequence[str], *, gateway: bool, rng: random.Random) -> None:
        self.targets = tuple(targets)
        self._gateway = gateway
        # Not always the first: many clients that submit one job each would all go there.
        self._next = rng.randrange(len(self.targets))

    def submit(self, key: str) -> int:
        """The owner of the key, whether it lives or not: only it knows what the key stands for.

        Without a key, each in turn.
        """
        if key:
            return owner_index(key, len(self.targets))
        index = self._next
        self._next = (index + 1) % len(self.targets)
        return index

    def job(self, job_id: str) -> int:
        """The owner of the job."""
        return owner_index(job_id, len(self.targets))

    def listing(self, node: int) -> int:
        """The node asked for, by its place in the list."""
        if isinstance(node, bool) or not isinstance(node, int):
            raise InvalidArgument("node", f"expected the number of a node, got {node!r:.40}")
        if not 0 <= node < len(self.targets):
            allowed = "only 0: a gateway lists all jobs" if self._gateway else "0 to {}"
            raise InvalidArgument("node", f"{node}: {allowed.format(len(self.targets) - 1)}")
        return node


def read_addresses(gateway: str | None, nodes: Sequence[str] | None) -> list[Address]:
    """The gateway, or every node in the order given."""
    if (gateway is None) == (nodes is None):
        which = "neither was" if gateway is None else "both were"
        raise InvalidArgument("gateway", f"give either gateway or nodes; {which} given")
    if gateway is not None:
        return [_address(gateway, "gateway")]
    if isinstance(nodes, str) or not isinstance(nodes, Sequence):
        raise InvalidArgument("nodes", "expected a list of HOST:PORT, in the order of the nodes")
    if not 1 <= len(nodes) <= MAX_NODES:
        raise InvalidArgument("nodes", f"expected 1 to {MAX_NODES} nodes, got {len(nodes)}")
    addresses = [_address(node, f"nodes[{place}]") for place, node in enumerate(nodes)]
    for place, address in enumerate(addresses):
        if address in addresses[:place]:
            raise InvalidArgument(f"nodes[{place}]", f"{address.target} is in the list already")
    return addresses


def _address(text: object, field: str) -> Address:
    # A comma would make several servers of it, and a call might go to any of them.
    if not isinstance(text, str) or "://" in text or "," in text or text != text.strip():
        raise InvalidArgument(field, f"expected HOST:PORT, like 127.0.0.1:50051, got {text!r:.80}")
    return parse_url(f"grpc://{text}", field)
