"""Does ``jq-bench regress`` catch what it says it does? With real runs, on a quiet machine.

    make check-regress                               # five comparisons of each kind: an hour
    make check-regress ARGS="--times 1 --pairs 8"    # one of each, to see that it works
    make check-regress ARGS="--profile regress"      # the shipped profile with its scenarios: hours

A build is compared with itself, which must be quiet each time, and with one that was slowed on
purpose, which must be caught each time. The slowed build is this checkout with a loop in the job
that the profile's cells submit. The loop takes twice the smallest loss of processor time that the
quiet comparisons state, as a share of a job's processor time.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median

from jobqueue.bench import pairs, records
from jobqueue.bench.measures import COST
from jobqueue.bench.regress import Comparison, compare

ROOT = Path(__file__).parents[2]
PROFILE = Path(__file__).with_suffix(".yml")
PAIRS = 10
JOB = Path("src/jobqueue/worker/registry.py")
SLEEP = "    await asyncio.sleep(work_duration_ms / 1000)\n"
LOOP = """\
    import time
    until = time.thread_time() + {seconds!r}
    while time.thread_time() < until:
        pass
"""


def main() -> int:
    """Exit status 1: a loss was missed, or there was none and it was said."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=5, help="comparisons of each kind")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs in each comparison")
    parser.add_argument("--profile", default=str(PROFILE), help="what is measured")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made)

        def comparison(name: str, new: Path) -> Comparison:
            into = scratch / name
            builds = pairs.build("BASE", ROOT), pairs.build("NEW", new)
            pairs.run(*builds, args.profile, args.pairs, into, lambda: None)
            found = compare(records.read([into / pairs.BASE]), records.read([into / pairs.NEW]))
            changes = ", ".join(f"{row.measure.name} {row.change:+.1%}" for row in found.rows)
            _say(
                f"{name}: {'LOSS' if found.worse else 'no loss'} ({changes};"
                f" detectable {_detectable(found):.1%} of {COST.name})"
            )
            return found

        quiet = [comparison(f"unchanged-{n}", ROOT) for n in range(1, args.times + 1)]
        detectable = median(map(_detectable, quiet))
        costs = [
            cost
            for run in records.read([scratch / "unchanged-1" / pairs.BASE])
            if (cost := COST.of(run))
        ]
        seconds = 2 * detectable * median(costs) / 1e6
        new = slowed(scratch / "checkout", seconds)
        _say(f"slowed by {2 * detectable:.1%}: {seconds * 1e6:.0f} µs more for a job")
        slow = [comparison(f"slowed-{n}", new) for n in range(1, args.times + 1)]
    alarms = sum(one.worse for one in quiet)
    caught = sum(one.worse for one in slow)
    _say(
        f"smallest detectable loss of {COST.name} {detectable:.1%}; slowed by twice that: caught"
        f" {caught} of {args.times}; unchanged: {alarms} of {args.times} said to lose"
    )
    return 0 if caught == args.times and not alarms else 1


def _detectable(found: Comparison) -> float:
    """The smallest loss of what the slowed job takes more of. Scenarios have jobs of their own."""
    return max(row.detectable for row in found.widest if row.measure == COST)


def slowed(checkout: Path, seconds: float) -> Path:
    """This checkout's source, in which each job takes so much more processor time."""
    shutil.copytree(ROOT / "src", checkout / "src", ignore=shutil.ignore_patterns("__pycache__"))
    text = (checkout / JOB).read_text()
    assert text.count(SLEEP) == 1, f"{JOB} has changed: say here where its job begins"
    (checkout / JOB).write_text(text.replace(SLEEP, LOOP.format(seconds=seconds) + SLEEP))
    return checkout


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
