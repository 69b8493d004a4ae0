"""``jq-bench peers``: the same work on jobqueue and on other queues for Python."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from jobqueue.bench.peers.catalogue import OURS, SYSTEMS, Setting, System
from jobqueue.bench.peers.environments import Environments, cache_folder
from jobqueue.bench.peers.run import Comparison, Run, Work, planned, with_bases
from jobqueue.bench.peers.table import HEADERS, absences, as_text, failures, rows
from jobqueue.cli.display import note, on_terminal, print_json, print_table, progress
from jobqueue.cli.program import examples, terminated_like_interrupted
from jobqueue.cli.session import Format, OutputOption
from jobqueue.core.errors import InvalidArgument

_NAMES = tuple(dict.fromkeys(system.name for system in SYSTEMS))
_USUAL = Work()
_BUSY = 0.5  # of the processors, before the first run
EXAMPLES = examples(
    "jq-bench peers",
    "jq-bench peers --only celery --only rq --jobs 1000   [dim](and jobqueue on Redis)[/dim]",
    "jq-bench peers --no-install --json > peers.json",
)


def peers(
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"Compare with this one; may be repeated: {', '.join(_NAMES)}. Default: all.",
            show_default=False,
        ),
    ] = None,
    setting: Annotated[
        list[Setting] | None,
        typer.Option(help="Measure in this setting; may be repeated.", show_default="both"),
    ] = None,
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
    folder: Annotated[
        Path, typer.Option(help="Where the results are kept, a file for each comparison.")
    ] = Path("results/peers"),
    as_json: Annotated[bool, typer.Option("--json", help="As --output json.")] = False,
    output: OutputOption = None,
) -> None:
    """Compare jobqueue with Celery, RQ, Dramatiq, Huey, Procrastinate and PgQueuer.

    The same no-op jobs on the same private PostgreSQL and Redis, one system after the other, with
    the same number of worker processes. Each peer is installed once in an environment of its own,
    under XDG_CACHE_HOME or ~/.cache. A ratio says how many times as fast as jobqueue a system is;
    above 1 it is faster.
    """
    chosen = _chosen(only)
    work = Work(jobs=jobs, workers=workers or os.cpu_count() or 1, repetitions=repetitions)
    plan = planned(chosen, setting or list(Setting), repetitions)
    environments = Environments(cache_folder(os.environ), install=install)
    comparison = Comparison(work, environments, minutes * 60)
    comparison.install(chosen, note)
    conditions = _conditions(work)
    measured: list[Run] = []
    try:
        with (
            terminated_like_interrupted(),
            progress("comparing", len(plan)) as bar,
            contextlib.closing(comparison.runs(plan)) as runs,
        ):
            for run in runs:
                measured.append(run)
                bar.advance()
                if not on_terminal():
                    what = run.failed or "measured"
                    note(f"{run.order + 1}/{len(plan)} {run.system.label}, {run.setting}: {what}")
    finally:
        conditions.update(comparison.conditions)
        document = _document(conditions, measured, cut_short=comparison.cut_short)
        kept = _keep(folder, document) if measured else None
    if as_json or output is Format.JSON:
        print_json(document)
    else:
        _show(conditions, measured, cut_short=comparison.cut_short)
    note(f"kept in {kept}")


def _chosen(only: list[str] | None) -> list[System]:
    unknown = sorted(set(only or ()) - set(_NAMES))
    if unknown:
        raise InvalidArgument(
            "--only", f"{unknown[0]!r} is not known; it is one of {', '.join(_NAMES)}"
        )
    wanted = set(only or _NAMES)
    return with_bases([system for system in SYSTEMS if system.name in wanted], SYSTEMS)


def _conditions(work: Work) -> dict[str, Any]:
    processors = os.cpu_count() or 1
    load = os.getloadavg()[0]
    return {
        "Python": platform.python_version(),
        "processors": processors,
        "worker processes": work.workers,
        "jobs": work.jobs,
        "repetitions": work.repetitions,
        "load before": round(load, 2),
        "shared": load > _BUSY * processors,
    }


def _document(conditions: dict[str, Any], runs: list[Run], *, cut_short: bool) -> dict[str, Any]:
    return {
        "command": "jq-bench peers",
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "conditions": conditions,
        "cut_short": cut_short,
        "rows": [row.as_json() for row in rows(runs)],
        "failed": failures(runs),
        "runs": [run.as_json() for run in runs],
    }


def _keep(folder: Path, document: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{document['ended'].replace(':', '').removesuffix('+0000')}.json"
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    return path


def _show(conditions: dict[str, Any], runs: list[Run], *, cut_short: bool) -> None:
    typer.echo(f"Times as fast as {OURS} on the same server in the same setting, and the figure.")
    print_table(
        HEADERS, as_text(rows(runs)), "Nothing was measured.", spare=("how",), elastic="keeps"
    )
    for line in [*failures(runs), *absences(runs, conditions["worker processes"])]:
        typer.echo(line)
    if cut_short:
        typer.echo("The time was up before all repetitions were run (--minutes).")
    told = [f"{name} {value}" for name, value in conditions.items() if name != "shared"]
    typer.echo("; ".join(told))
    if conditions["shared"]:
        typer.echo("The processors were in use by others when it began: do not keep these figures.")
