"""Provide the command ``jq-bench peers``: it compares jobqueue with other Python job queues."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

import typer

from jobqueue._version import __version__
from jobqueue.bench import machine
from jobqueue.bench.peers.catalogue import SYSTEMS, Fsync, PeerSetting, System
from jobqueue.bench.peers.environments import Environments, cache_folder
from jobqueue.bench.peers.run import PeerComparison, PeerRun, PeerWork, planned, setups, with_bases
from jobqueue.bench.peers.table import LEGEND, WIDTH, absences, as_text, failures, rows
from jobqueue.cli.display import note, on_terminal, print_json, progress
from jobqueue.cli.program import examples, terminated_like_interrupted
from jobqueue.cli.session import Format, OutputOption
from jobqueue.cli.version import commit
from jobqueue.core.errors import Conflict, InvalidArgument, Unavailable

_NAMES = tuple(dict.fromkeys(system.name for system in SYSTEMS))
_USUAL = PeerWork()
_FOLDER = Path("results/peers")
_FILE = "peers.json"
_SECONDS = 10  # of a run, about
EXAMPLES = examples(
    "jq-bench peers",
    "jq-bench peers --only celery --only rq --jobs 1000   [dim](and jobqueue on Redis)[/dim]",
    "jq-bench peers --redis-fsync always   [dim](so that Redis, too, loses nothing)[/dim]",
    "jq-bench peers --setting fastest --slots 4 --slots 64 --minutes 30",
    "jq-bench peers --no-install --json > peers.json",
)


def peers(
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Measure only this system; may be repeated."
            f" Names: {', '.join(_NAMES)}. Default: all.",
        ),
    ] = None,
    setting: Annotated[
        list[PeerSetting] | None,
        typer.Option(help="Measure in this setting; may be repeated.", show_default="both"),
    ] = None,
    slots: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=1024,
            metavar="COUNT",
            help="Jobs that all workers together run at once, a multiple of the number of workers;"
            " may be repeated. Default: the number of each setting.",
        ),
    ] = None,
    redis_fsync: Annotated[
        Fsync, typer.Option(help="When Redis writes to the disk, for all systems on Redis.")
    ] = Fsync.NEVER,
    jobs: Annotated[
        int, typer.Option(min=10, max=1_000_000, help="Jobs of the batch that is drained.")
    ] = _USUAL.jobs,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, max=64, help="Worker processes of each system. Default: one for each processor."
        ),
    ] = None,
    repetitions: Annotated[
        int, typer.Option(min=1, max=100, help="How often each system is measured.")
    ] = _USUAL.repetitions,
    minutes: Annotated[
        float, typer.Option(min=0.1, max=1440, help="Begin no further run after this time.")
    ] = 10.0,
    install: Annotated[
        bool,
        typer.Option(
            "--install/--no-install",
            help="Whether to download the peers that are not in the cache yet.",
        ),
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help=f"Folder for the results. Default: {_FOLDER}, or a new folder beside it.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    output: OutputOption = None,
) -> None:
    """Compare jobqueue with Celery, RQ, Dramatiq, Huey, Procrastinate and PgQueuer.

    The systems run one after the other, with the same no-op jobs, the same private PostgreSQL and
    Redis, and the same number of worker processes. Each system is installed once in its own
    environment under XDG_CACHE_HOME or ~/.cache. A ratio is a system's speed divided by that of
    jobqueue: above 1 the system is faster. A comparison of all systems lasts about nine minutes.
    """
    chosen = _chosen(only)
    work = PeerWork(
        jobs=jobs,
        workers=workers or os.cpu_count() or 1,
        repetitions=repetitions,
        fsync=redis_fsync,
    )
    for number in slots or ():
        if number % work.workers:
            raise InvalidArgument(
                "--slots", f"{number} is not a multiple of the {work.workers} worker processes"
            )
    plan = planned(chosen, setups(setting or list(PeerSetting), slots or ()), repetitions)
    folder = _folder(out)
    comparison = PeerComparison(
        work, Environments(cache_folder(os.environ), install=install), minutes * 60
    )
    kept = _Results(folder, work, comparison)
    with terminated_like_interrupted():
        comparison.install(chosen, note)
        likely = len(plan) * _SECONDS / 60
        note(f"{len(plan)} runs, about {likely:.0f} minutes" if likely > 1 else f"{len(plan)} runs")
        try:
            _measure(comparison, plan, kept)
        except KeyboardInterrupt:
            if kept.runs:
                note(f"{len(kept.runs)} of {len(plan)} runs were written to {folder}")
            raise
    if as_json or output is Format.JSON:
        print_json(kept.document())
    else:
        kept.show()
    if all(run.failed for run in kept.runs):
        raise Unavailable("every run failed, so nothing was measured; see the reasons above")
    from jobqueue.bench.peers.page import write

    note(f"{write(folder, rows(kept.runs), kept.conditions(), kept.remarks(), work.fsync)}")


def _measure(comparison: PeerComparison, plan: Sequence[Any], kept: _Results) -> None:
    with (
        progress("comparing", len(plan)) as bar,
        contextlib.closing(comparison.runs(plan)) as runs,
    ):
        for run in runs:
            kept.add(run)
            bar.advance()
            if not on_terminal():
                note(f"{run.order + 1}/{len(plan)} {run.which}: {run.failed or 'measured'}")


def _chosen(only: list[str] | None) -> list[System]:
    unknown = sorted(set(only or ()) - set(_NAMES))
    if unknown:
        raise InvalidArgument(
            "--only", f"{unknown[0]!r} is not a known system; allowed: {', '.join(_NAMES)}"
        )
    wanted = set(only or _NAMES)
    return with_bases([system for system in SYSTEMS if system.name in wanted], SYSTEMS)


def _folder(out: Path | None) -> Path:
    """Return the folder for the results. Raise Conflict if ``out`` contains earlier results.

    Without ``out``, return a folder below ``results/`` that has no earlier results.
    """
    if out is not None:
        if (out / _FILE).exists():
            raise Conflict(f"--out: {out} has the results of an earlier run; choose another folder")
        return out
    return new_folder(_FOLDER)


def new_folder(usual: Path) -> Path:
    """Return the folder ``usual``, or a new folder beside it if ``usual`` is not empty."""
    number, folder = 1, usual
    while folder.exists() and any(folder.iterdir()):
        number += 1
        folder = usual.with_name(f"{usual.name}-{number}")
    return folder


@dataclass(slots=True)
class _Results:
    """Keeps the results of the ended runs, and writes them to a file after each run."""

    folder: Path
    work: PeerWork
    comparison: PeerComparison
    runs: list[PeerRun] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    machine: dict[str, Any] = field(default_factory=dict)

    def add(self, run: PeerRun) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.machine:
            self.machine = machine.described(self.folder)
        self.runs.append(run)
        text = json.dumps(self.document(), indent=2, ensure_ascii=False)
        scratch = self.folder / f"{_FILE}.new"
        scratch.write_text(text + "\n", encoding="utf-8")
        scratch.replace(self.folder / _FILE)

    def conditions(self) -> dict[str, Any]:
        disturbed = sum(run.disturbed for run in self.runs)
        return {
            "command": shlex.join(["jq-bench", *sys.argv[1:]]),
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            "minutes": round((time.monotonic() - self.began) / 60, 1),
            "jobqueue": f"{__version__} ({commit()})",
            "Python": platform.python_version(),
            **self.machine,
            **self.comparison.conditions,
            "worker processes": self.work.workers,
            "repetitions": self.work.repetitions,
            "jobs of a batch, at most": self.work.jobs,
            "disturbed runs": f"{disturbed} of {len(self.runs)}",
        }

    def document(self) -> dict[str, Any]:
        return {
            "conditions": self.conditions(),
            "cut_short": self.comparison.cut_short,
            "rows": [row.as_json(self.work.fsync) for row in rows(self.runs)],
            "failed": failures(self.runs),
            "remarks": self.remarks(),
            "runs": [run.as_json() for run in self.runs],
        }

    def remarks(self) -> list[str]:
        """Return remarks that a reader of the results should know, like failed runs."""
        found = [*failures(self.runs), *absences(self.runs, self.work.workers)]
        if self.comparison.cut_short:
            found.append("The time was up before all repetitions were run (--minutes).")
        if any(run.disturbed for run in self.runs):
            found.append(
                "Other programs used the processors during runs marked †: do not publish these"
                " figures."
            )
        return found

    def show(self) -> None:
        made = rows(self.runs)
        for line in as_text(made, self.work.fsync):
            typer.echo(line)
        told = "; ".join(f"{name} {value}" for name, value in self.conditions().items())
        for text in ([LEGEND] if made else []) + [*self.remarks(), told]:
            typer.echo("\n".join(wrap(text, WIDTH, break_on_hyphens=False)))
