"""Render a report as one HTML page, or as Markdown with its plots in separate files."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from jobqueue.bench.report.document import (
    Block,
    Commands,
    Document,
    Findings,
    Folded,
    Table,
    Text,
)
from jobqueue.bench.report.plots import COLOURS, Plot

PLOTS = "plots"

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1c1e21; background: #fff;
       max-width: 1120px; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; padding-bottom: .2rem;
     border-bottom: 1px solid #e2e4e8; }
p { max-width: 75ch; }
pre { background: #f5f6f8; padding: .6rem .9rem; border-radius: 6px; overflow-x: auto;
      white-space: pre-wrap; }
table { border-collapse: collapse; font-size: .88rem; margin: .6rem 0; }
.wide { overflow-x: auto; }
th, td { padding: .28rem .7rem; border-bottom: 1px solid #e9ebee; text-align: right;
         font-variant-numeric: tabular-nums; vertical-align: top; }
th { font-weight: 600; border-bottom: 2px solid #cfd3d9; vertical-align: bottom; }
.w { text-align: left; }
td.long { max-width: 46rem; overflow-wrap: anywhere; }
.q { color: #8a8f98; font-size: .94em; }
ul.reading { padding-left: 1.1rem; max-width: 88ch; }
ul.reading li { margin: .3rem 0; }
figure { margin: 1rem 0 1.4rem; overflow-x: auto; }
figure svg { max-width: 100%; height: auto; }
figcaption { color: #555b64; font-size: .9rem; }
details { margin: .5rem 0; }
summary { cursor: pointer; color: #0b5cad; }
nav { font-size: .9rem; margin: .4rem 0 1rem; }
nav a { color: #0b5cad; text-decoration: none; margin-right: 1rem; white-space: nowrap; }
@media print { details > * { display: block; } nav { display: none; } }
"""


def page(document: Document) -> str:
    """Return the report as an HTML page. The page contains its styles and plots.

    The page loads nothing over the network.
    """
    title = escape(document.title)
    links = " ".join(
        f'<a href="#s{n}">{escape(section.title)}</a>'
        for n, section in enumerate(document.sections)
    )
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>\n<style>{_STYLE}{_subjects()}</style>\n</head>\n<body>",
            f"<h1>{title}</h1>\n<nav>{links}</nav>",
            *(
                part
                for n, section in enumerate(document.sections)
                for part in (
                    f'<h2 id="s{n}">{escape(section.title)}</h2>',
                    *(_html(block) for block in section.blocks),
                )
            ),
            "</body>\n</html>\n",
        ]
    )


def _subjects() -> str:
    """Return the CSS that marks a leader's table fields with the leader's colour in the plots."""
    return "".join(
        f".s{n} {{ background: {colour}1f; box-shadow: inset 3px 0 {colour}; }}\n"
        for n, colour in enumerate(COLOURS)
    )


def _html(block: Block) -> str:
    match block:
        case Text(text):
            return f"<p>{escape(text)}</p>"
        case Commands(lines):
            return f"<pre>{escape(chr(10).join(lines))}</pre>"
        case Findings(items):
            said = (
                f"<li><strong>{escape(_upper(one.lead))}:</strong> {escape(one.text)}</li>"
                for one in items
            )
            return f'<ul class="reading">{"".join(said)}</ul>'
        case Folded(title, blocks):
            inner = "\n".join(map(_html, blocks))
            return f"<details><summary>{escape(title)}</summary>\n{inner}\n</details>"
        case Plot(_, caption, svg):
            return f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>"
        case Table():
            return _html_table(block)


def _html_table(table: Table) -> str:
    heads = "".join(
        f'<th class="w">{escape(one)}</th>' if n < table.words else f"<th>{escape(one)}</th>"
        for n, one in enumerate(table.headers)
    )
    rows = []
    for row in table.rows:
        fields = []
        for n, cell in enumerate(row):
            classes = ["w long"] * (n < table.words) + ["q"] * cell.quiet
            if cell.subject is not None:
                classes.append(f"s{cell.subject % len(COLOURS)}")
            chosen = f' class="{" ".join(classes)}"' if classes else ""
            fields.append(f"<td{chosen}>{escape(cell.text)}</td>")
        rows.append(f"<tr>{''.join(fields)}</tr>")
    body = "\n".join(rows)
    whole = f"<table><thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table>"
    return f'<div class="wide">{whole}</div>'


def markdown(document: Document) -> str:
    """Return the report as Markdown, whose plots are files in the folder ``plots``."""
    lines = [f"# {_plain(document.title)}"]
    for section in document.sections:
        lines += ["", f"## {_plain(section.title)}"]
        for block in section.blocks:
            lines += ["", *_markdown(block)]
    return "\n".join(lines) + "\n"


def _markdown(block: Block) -> Iterator[str]:
    match block:
        case Text(text):
            yield _plain(text)
        case Commands(lines):
            yield from (f"    {line}" for line in lines)
        case Findings(items):
            yield from (f"- **{_plain(_upper(one.lead))}:** {_plain(one.text)}" for one in items)
        case Folded(title, blocks):
            yield f"<details><summary>{escape(title)}</summary>"
            for inner in blocks:
                yield ""
                yield from _markdown(inner)
            yield ""
            yield "</details>"
        case Plot(name, caption, _):
            yield f"![{_plain(caption)}]({PLOTS}/{name}.svg)"
        case Table(headers, rows, words):
            aligned = (":--" if n < words else "--:" for n in range(len(headers)))
            yield "| " + " | ".join(map(_plain, headers)) + " |"
            yield "|" + "|".join(aligned) + "|"
            for row in rows:
                yield "| " + " | ".join(_plain(cell.text) for cell in row) + " |"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _plain(text: str) -> str:
    """Escape characters with a meaning in Markdown or HTML, and remove line breaks."""
    for letter in "\\`*_<>|[]":
        text = text.replace(letter, f"\\{letter}")
    return " ".join(text.split())
