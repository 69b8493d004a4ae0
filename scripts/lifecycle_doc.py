"""Writes docs/lifecycle.md from the lifecycle table. With --check, fails if it is out of date."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from jobqueue.core import lifecycle
from jobqueue.core.lifecycle import (
    FENCED,
    PATHS,
    REPORTABLE,
    TERMINAL,
    TRANSITIONS,
    VIEWS,
    Reason,
    State,
    project,
)

TARGET = Path(__file__).resolve().parent.parent / "docs" / "lifecycle.md"

INTRODUCTION = """\
# The lifecycle of a job

This page is generated from `src/jobqueue/core/lifecycle.py` by `scripts/lifecycle_doc.py`; a test
compares the two. Every edge below is written as one immutable event with its time and reason.
"""

MOVES = """\
A *move* is something that happens to a job. It walks one or more edges in one write; a state that
is not listed refuses it. A fenced move names the lease of the attempt: once the lease does not
stand any more, the move is refused. A move that ends in `FAILED` with no retry left goes on to
`DEAD_LETTERED` in the same write.

A hand-back costs no retry. But a job that only goes back and forth comes to an end: after 1,000
hand-overs that were no retry, each hand-back ends in `FAILED`, with what follows a failed attempt.
"""


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for (origin, target), reasons in TRANSITIONS.items():
        label = ", ".join(sorted(reason.value for reason in reasons))
        lines.append(f"    {origin.name if origin else '[*]'} --> {target.name} : {label}")
    lines.extend(f"    {state.name} --> [*]" for state in State if state in TERMINAL)
    return "\n".join(lines) + "\n"


def state_comments() -> dict[str, str]:
    """The comment above each state: who moves a job on from there."""
    source = Path(lifecycle.__file__).read_text(encoding="utf-8")
    found = {}
    for comment, name in re.findall(r"((?:^    # .*\n)+)    ([A-Z_]+) = \d", source, re.MULTILINE):
        found[name] = " ".join(line.strip().removeprefix("# ") for line in comment.splitlines())
    return found


def states() -> str:
    """What each state means, in the words of the table's own comments."""
    comments = state_comments()
    rows = [f"| `{state.name}` | {comments[state.name]} |" for state in State]
    return "\n".join(["| state | who moves it on |", "|---|---|", *rows]) + "\n"


def moves() -> str:
    """What each move does from each state."""
    lines = ["| move | made by | from | edges, in one write |", "|---|---|---|---|"]
    for move, starts in PATHS.items():
        who = "worker" if move in REPORTABLE else "server"
        fenced = ", fenced" if move in FENCED else ""
        for origin, path in starts.items():
            walk = " → ".join(f"`{target.name}` ({reason.value})" for target, reason in path)
            lines.append(f"| {move.value} | {who}{fenced} | `{origin.name}` | {walk} |")
    return "\n".join(lines) + "\n"


def projections() -> str:
    """How the other vocabularies name the states."""
    lines = ["| " + " | ".join(VIEWS) + " |", "|" + "---|" * len(VIEWS)]
    for state in State:
        lines.append("| " + " | ".join(f"`{project(view, state, None)}`" for view in VIEWS) + " |")
    cancelled = [f"`{project(view, State.DEAD_LETTERED, Reason.CANCELLED)}`" for view in VIEWS]
    cancelled[0] += " (CANCELLED)"
    lines.append("| " + " | ".join(cancelled) + " |")
    return "\n".join(lines) + "\n"


def render() -> str:
    """The whole page."""
    parts = [
        INTRODUCTION,
        f"```mermaid\n{diagram()}```\n",
        "## States\n",
        states(),
        "## Moves\n",
        MOVES,
        moves(),
        "## Other vocabularies\n",
        projections(),
    ]
    return "\n".join(parts)


def main() -> int:
    """Write the page, or with --check compare it."""
    text = render()
    if "--check" not in sys.argv[1:]:
        TARGET.parent.mkdir(exist_ok=True)
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
        return 0
    print(f"{TARGET} is out of date: run scripts/lifecycle_doc.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
