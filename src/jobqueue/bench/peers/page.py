"""Write the comparison with peers as HTML and Markdown, in the form of other reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jobqueue.bench.peers.catalogue import Fsync
from jobqueue.bench.peers.table import LEGEND, MEASURES, NONE, PeerMeasure, PeerRow, in_words
from jobqueue.bench.report.document import Block, Document, ReportSection, Table, TableCell, Text
from jobqueue.bench.report.rendering import markdown, page
from jobqueue.bench.report.writing import MARKDOWN, PAGE


def write(
    folder: Path,
    made: Sequence[PeerRow],
    conditions: Mapping[str, Any],
    remarks: Sequence[str],
    fsync: Fsync,
) -> Path:
    """Write the HTML page and the Markdown file, and return the path of the page."""
    document = _document(made, conditions, remarks, fsync)
    (folder / PAGE).write_text(page(document), encoding="utf-8")
    (folder / MARKDOWN).write_text(markdown(document), encoding="utf-8")
    return folder / PAGE


def _document(
    made: Sequence[PeerRow], conditions: Mapping[str, Any], remarks: Sequence[str], fsync: Fsync
) -> Document:
    heads = ["system", "setup", "what a figure pays for", "slots"]
    table = Table(
        [*heads, *(one.title for one in MEASURES)], [_row(row, fsync) for row in made], words=3
    )
    words: list[Block] = [Text(LEGEND), *(Text(remark) for remark in remarks)]
    told = [[TableCell(name), TableCell(str(value))] for name, value in conditions.items()]
    return Document(
        "jobqueue and other queues for Python",
        [
            ReportSection("Times as fast as jobqueue", [*words, table]),
            ReportSection("Conditions", [Table(["condition", ""], told, words=2)]),
        ],
    )


def _row(row: PeerRow, fsync: Fsync) -> list[TableCell]:
    setting = row.setup.setting
    mark = " †" if row.disturbed else ""
    return [
        TableCell(f"{row.system.label} {row.version}{mark}"),
        TableCell(f"{row.setup}: {row.system.kept(setting).how}"),
        TableCell(row.system.told(setting, fsync)),
        TableCell(f"{row.slots:,}" if row.slots else "any"),
        *(_cell(row, one) for one in MEASURES),
    ]


def _cell(row: PeerRow, measure: PeerMeasure) -> TableCell:
    found = row.cells.get(measure.name)
    if found is None:
        return TableCell(NONE)
    figure = in_words(found.value, timed=bool(measure.times))
    if row.is_base or found.ratio is None:
        return TableCell(figure, quiet=row.is_base)
    bounds = ""
    if found.ratio.low is not None and found.ratio.high is not None:
        bounds = f" ({found.ratio.low:.2f}–{found.ratio.high:.2f})"
    return TableCell(f"{found.ratio.mean:.2f}×{bounds}, {figure}")
