"""The tables of docs/taskqueue.md, to which the README leads, are what the code says."""

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
from jobqueue.taskqueue.designs import catalogue
from jobqueue.taskqueue.designs.catalogue import SERVICES
from jobqueue.taskqueue.designs.settings import Variable
from scripts import taskqueue_doc

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "taskqueue.md"


@pytest.mark.req("tq:README")
def test_the_tables_are_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for table in taskqueue_doc.TABLES.values():
        assert table() in text, "run scripts/taskqueue_doc.py"


@pytest.mark.req("tq:README")
def test_the_readme_leads_to_every_endpoint_and_every_variable() -> None:
    """Read from the page alone, so that a generator that leaves something out is caught."""
    assert "services, addresses and variables](docs/taskqueue.md)" in README.read_text("utf-8")
    rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]
    for service in SERVICES.values():
        port = service.port.default if service.port else "n/a"
        endpoint = [row for row in rows if row[:2] == [service.name, f"jq-service {service.name}"]]
        assert [row[4] for row in endpoint] == [port]
        told = {row[1]: row[2] for row in rows if row[0] == service.name and len(row) == 5}
        for variable in service.variables:
            assert _shown(variable) in told[variable.name]
    told = {row[1]: row[2] for row in rows if row[0] == "all" and len(row) == 5}
    for variable in catalogue.SHARED:
        assert _shown(variable) in told[variable.name]


def _shown(variable: Variable) -> str:
    return "required" if variable.required else variable.default or variable.fallback


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
    page = PAGE.read_text(encoding="utf-8")
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
    text = PAGE.read_text(encoding="utf-8")
    stale = text.replace("| job | `JOB_PORT` | `50052`", "| job | `JOB_PORT` | `50099`")
    assert stale != text
    assert taskqueue_doc.render(stale) == text
