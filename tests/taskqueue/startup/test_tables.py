"""The tables of the README and of docs/taskqueue.md are what the code says."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor
from typer.main import get_command

from jobqueue.cli import service as program
from jobqueue.cli import start
from jobqueue.pb import taskqueue_public_pb2 as public
from jobqueue.topology.taskqueue import catalogue
from jobqueue.topology.taskqueue.catalogue import SERVICES
from scripts import taskqueue_doc

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "taskqueue.md"


@pytest.mark.req("tq:README")
@pytest.mark.parametrize(
    ("page", "tables"),
    [(README, ("endpoints", "variables")), (PAGE, ("endpoints", "by_service", "health"))],
    ids=["README", "taskqueue"],
)
def test_the_tables_are_up_to_date(page: Path, tables: tuple[str, ...]) -> None:
    text = page.read_text(encoding="utf-8")
    for name in tables:
        assert taskqueue_doc.TABLES[name]() in text, "run scripts/taskqueue_doc.py"


@pytest.mark.req("tq:README")
def test_the_readme_has_every_endpoint_and_every_variable() -> None:
    """Read from the page alone, so that a generator that leaves something out is caught."""
    rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in README.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    for service in SERVICES.values():
        (row,) = (row for row in rows if row[0] == service.name)
        port = service.port.default if service.port else "n/a"
        assert (row[1], row[4]) == (f"jq-service {service.name}", port)
        for variable in service.variables:
            (row,) = (row for row in rows if row[0] == variable.name)
            assert service.name in row[1].split(", ")
            wanted = "required" if variable.required else variable.default or variable.fallback
            assert wanted in row[2]
    for variable in catalogue.SHARED:
        (row,) = (row for row in rows if row[0] == variable.name)
        assert row[1] == "all"


@pytest.mark.req("tq:README", "tq:STARTUP")
def test_the_start_commands_exist() -> None:
    commands = get_command(program.app).commands  # type: ignore[attr-defined]
    assert list(commands) == list(SERVICES)
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["jq-service"] == f"{start.__name__}:{start.service.__name__}"


@pytest.mark.req("tq:README")
def test_every_field_of_a_public_request_has_its_limits_documented() -> None:
    service = public.DESCRIPTOR.services_by_name["TaskQueuePublicService"]
    asked = {name for method in service.methods for name in leaves(method.input_type)}
    page = (ROOT / "docs" / "taskqueue.md").read_text(encoding="utf-8")
    table = page.partition("<!-- taskqueue: limits -->")[2].partition("<!-- end -->")[0]
    shown = {line.split("`")[1] for line in table.splitlines() if line.startswith("| `")}
    assert shown == asked


def leaves(message: Descriptor, prefix: str = "") -> Iterator[str]:
    for field in message.fields:
        inside = field.message_type
        if inside is None or inside.GetOptions().map_entry:
            yield prefix + field.name
        else:
            yield from leaves(inside, f"{prefix}{field.name}.")


def test_a_table_out_of_date_is_seen_and_renewed() -> None:
    text = README.read_text(encoding="utf-8")
    stale = text.replace("| `JOB_PORT` | job | `50052`", "| `JOB_PORT` | job | `50099`")
    assert stale != text
    assert taskqueue_doc.render(stale) == text
