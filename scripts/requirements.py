"""Prints which tests show which requirement, their last outcome, and the ids still open.

A requirement is shown when at least one of its tests last passed and none last failed. Skipped and
expected-to-fail tests do not count. ``STRICT=1`` in the environment, or ``--strict``, makes an open
id an error; ``--write`` renews docs/requirements.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "requirements.md"
sys.path.insert(0, str(ROOT))

from tests.plugin_requirements import NOT_RUN, read_record  # noqa: E402
from tests.requirement_ids import REQUIREMENTS  # noqa: E402

INTRODUCTION = """\
# Requirements and the tests that show them

Written by `make requirements ARGS=--write`; do not edit. `make requirements` also prints the last
outcome of each test.

| id | what | shown by |
|---|---|---|
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strict", action="store_true", help="exit 1 while an id is open")
    parser.add_argument("--write", action="store_true", help="renew docs/requirements.md")
    parser.add_argument("--check", action="store_true", help="exit 1 if that file is out of date")
    parser.add_argument("--no-collect", action="store_true", help="use the last record as it is")
    args = parser.parse_args()
    strict = args.strict or os.environ.get("STRICT", "") not in ("", "0")

    if not args.no_collect and not _collect() and (args.write or args.check):
        return 1
    tests = _tests_by_requirement()

    if args.write or args.check:
        return _document(_render(tests), check=args.check)

    open_ids = _print_table(tests)
    total = len(REQUIREMENTS)
    print(f"\n{total - len(open_ids)} of {total} shown, {len(open_ids)} open")
    if open_ids:
        print("open: " + " ".join(open_ids))
    return 1 if strict and open_ids else 0


def _collect() -> bool:
    """Let pytest note every marked test, also those that have never run."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-m", "", "-p", "no:xdist"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 5):  # 5: no tests yet
        print(done.stdout[-4000:] + done.stderr[-4000:], file=sys.stderr)
        print("The tests could not all be collected: the table may be incomplete.", file=sys.stderr)
        return False
    return True


def _tests_by_requirement() -> dict[str, dict[str, list[str]]]:
    """Requirement -> test function -> the outcomes of its parameters."""
    table: dict[str, dict[str, list[str]]] = {id_: defaultdict(list) for id_ in REQUIREMENTS}
    for test, entry in sorted(read_record(ROOT).items()):
        for id_ in entry["ids"]:
            if id_ in table:
                table[id_][test.partition("[")[0]].append(entry["outcome"])
    return table


def _print_table(tests: dict[str, dict[str, list[str]]]) -> list[str]:
    open_ids = []
    for id_, description in REQUIREMENTS.items():
        outcomes = [o for each in tests[id_].values() for o in each]
        shown = "passed" in outcomes and "failed" not in outcomes
        if not shown:
            open_ids.append(id_)
        print(f"{id_:<18}{'shown' if shown else 'OPEN':<7}{description}")
        for test, each in tests[id_].items():
            print(f"{'':<25}{_summary(each):<16}{test}")
    return open_ids


def _summary(outcomes: list[str]) -> str:
    for bad in ("failed", "xfailed", "xpassed"):
        if bad in outcomes:
            return bad
    passed = outcomes.count("passed")
    if passed == len(outcomes):
        return "passed"
    if passed:
        return f"passed {passed}/{len(outcomes)}"
    return "skipped" if "skipped" in outcomes else NOT_RUN


def _render(tests: dict[str, dict[str, list[str]]]) -> str:
    lines = []
    for id_, description in REQUIREMENTS.items():
        names = "<br>".join(f"`{test}`" for test in tests[id_]) or "open"
        lines.append(f"| {id_} | {description} | {names} |\n")
    return INTRODUCTION + "".join(lines)


def _document(text: str, *, check: bool) -> int:
    if not check:
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(text)
        print(f"wrote {DOCUMENT.relative_to(ROOT)}")
        return 0
    if DOCUMENT.exists() and DOCUMENT.read_text() == text:
        return 0
    print("docs/requirements.md is out of date: run `make requirements ARGS=--write`")
    return 1


if __name__ == "__main__":
    sys.exit(main())
