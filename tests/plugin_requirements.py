"""Records which test shows which requirement, and how it went.

``@pytest.mark.req("jq:FR-014", "inp:QUEUE")`` names what a test shows; an unknown id fails the
collection. At the end of a run the outcomes go to ``.requirements.json``, over the older ones of
tests that did not run this time. ``scripts/requirements.py`` reads that file. Under xdist the
workers collect and the controller writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests import stand_in
from tests.requirement_ids import REQUIREMENTS

RECORD = ".requirements.json"
NOT_RUN = "not run"
_SEVERITY = ["passed", "skipped", "xpassed", "xfailed", "failed"]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(RequirementsRecorder(config), "requirements-recorder")


class RequirementsRecorder:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.ids: dict[str, list[str]] = {}  # collected test -> the requirements it shows
        self.members: dict[str, list[str]] = {}  # collected file -> all its tests and classes
        self.outcomes: dict[str, str] = {}

    # Collection: in this process, or in the xdist workers.

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        for item in report.result or ():
            if isinstance(item, pytest.Item) and (wrong := _unknown_ids(item)):
                report.outcome = "failed"
                report.longrepr = (
                    f"{item.nodeid} names unknown requirements: {', '.join(wrong)}\n"
                    "All ids are in tests/requirement_ids.py."
                )
        if report.outcome == "failed":
            report.result = []
        elif isinstance(collector, pytest.Module):
            self.members[collector.nodeid] = [child.nodeid for child in report.result or ()]
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if ids := _ids(item):
                self.ids[item.nodeid] = ids

    # The run.

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xfailed" if report.skipped else "xpassed"  # type: ignore[assignment]
        elif report.passed and stand_in.was_used(report):
            outcome = "skipped"  # it shows nothing about the real thing
        earlier = self.outcomes.get(report.nodeid, "passed")
        self.outcomes[report.nodeid] = max(earlier, outcome, key=_SEVERITY.index)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        sent = getattr(node, "workeroutput", {}).get("requirements")
        if sent:
            self.ids.update(sent["ids"])
            self.members.update(sent["members"])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["requirements"] = {"ids": self.ids, "members": self.members}
        else:
            self._write(self.config.rootpath)

    def _write(self, root: Path) -> None:
        record = {
            test: entry for test, entry in read_record(root).items() if self._is_current(test, root)
        }
        for test in self._unmarked(record):
            del record[test]
        for test, ids in self.ids.items():
            outcome = self.outcomes.get(test) or record.get(test, {}).get("outcome", NOT_RUN)
            record[test] = {"ids": ids, "outcome": outcome}
        scratch = root / f"{RECORD}.{os.getpid()}"
        scratch.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        scratch.replace(root / RECORD)

    def _unmarked(self, record: dict[str, dict[str, Any]]) -> list[str]:
        """Recorded tests that ran now and show nothing any more."""
        return [test for test in record if test in self.outcomes and test not in self.ids]

    def _is_current(self, test: str, root: Path) -> bool:
        """False for a recorded test that has since been removed or renamed."""
        file = test.partition("::")[0]
        if file not in self.members:
            return (root / file).exists()
        return any(test == m or test.startswith(f"{m}::") for m in self.members[file])


def read_record(root: Path) -> dict[str, dict[str, Any]]:
    try:
        record = json.loads((root / RECORD).read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _ids(item: pytest.Item) -> list[str]:
    return sorted({id_ for mark in item.iter_markers("req") for id_ in mark.args})


def _unknown_ids(item: pytest.Item) -> list[str]:
    return [str(id_) for id_ in _ids(item) if id_ not in REQUIREMENTS]
