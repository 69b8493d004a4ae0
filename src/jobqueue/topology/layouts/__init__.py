"""The topologies that ``jq-ctl up`` knows. Another one joins by its wiring and a line here."""

from __future__ import annotations

from collections.abc import Callable

from jobqueue.topology.layouts.embedded import embedded
from jobqueue.topology.layouts.layout import Layout
from jobqueue.topology.layouts.microservices import microservices
from jobqueue.topology.layouts.nodes import nodes
from jobqueue.topology.layouts.plan import Plan
from jobqueue.topology.layouts.replicated import replicated
from jobqueue.topology.layouts.streaming import streaming

LAYOUTS: dict[str, Callable[[Plan], Layout]] = {
    "embedded": embedded,
    "replicated": replicated,
    "streaming": streaming,
    "microservices": microservices,
    "nodes": nodes,
}
