"""Writes the tables of the task queue's services into docs/taskqueue.md.

They come from the table that the services themselves are started by. With --check, fails if one of
them is out of date.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from jobqueue.access import rules
from jobqueue.core import texts
from jobqueue.taskqueue.components import model, requests
from jobqueue.taskqueue.designs.catalogue import DESIGN_A, NODE, SERVICES, SHARED, Service
from jobqueue.taskqueue.designs.settings import ListeningVariables, Variable

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "taskqueue.md"


@dataclass(frozen=True, slots=True)
class HealthTiming:
    """Holds the times of a container's health check in seconds, and its number of retries."""

    interval: int
    timeout: int
    retries: int
    start_period: int


HEALTH_TIMING = HealthTiming(interval=5, timeout=2, retries=12, start_period=20)


def healthcheck(service: Service) -> str:
    """Return the command that checks the service's health on the same machine."""
    mode, target = "worker", "${COORDINATOR_ADDR}"  # it could do its work
    if service.port is not None:
        mode, target = "tcp", f"127.0.0.1:${{{service.port.name}}}"
    return f"python -m scripts.healthcheck --mode {mode} --target {target} --service {service.name}"


def endpoints() -> str:
    """Which command serves what, and where."""
    lines = [
        "| service | start command | proto service | bind host | port | called |",
        "|---|---|---|---|---:|---|",
    ]
    for service in (*DESIGN_A, NODE):
        lines.append(f"| {' | '.join(_endpoint(service))} |")
    return "\n".join(lines)


def _endpoint(service: Service) -> list[str]:
    command = f"`jq-service {service.name}`"
    if service.port is None:
        return [f"`{service.name}`", command, "(none: it calls)", "n/a", "n/a", "no"]
    host, port = ListeningVariables.model_fields["bind_host"].default, service.port.default
    return [f"`{service.name}`", command, f"`{service.serves}`", f"`{host}`", f"`{port}`", "yes"]


def by_service() -> str:
    """What each service is told, and what is allowed."""
    lines = ["| service | variable | default | allowed | what |", "|---|---|---|---|---|"]
    for service in SERVICES.values():
        lines += [_variable(service.name, variable) for variable in service.variables]
    lines += [_variable("all", variable) for variable in SHARED]
    return "\n".join(lines)


def _variable(service: str, variable: Variable) -> str:
    cells = (_default(variable), variable.allowed(), variable.meaning)
    return f"| {service} | `{variable.name}` | {' | '.join(cells)} |"


def _default(variable: Variable) -> str:
    if variable.required:
        return "required"
    return f"`{variable.default}`" if variable.default else variable.fallback


def health() -> str:
    """How each is asked, and when in a container."""
    lines = ["| service | healthcheck |", "|---|---|"]
    lines += [f"| `{service.name}` | `{healthcheck(service)}` |" for service in SERVICES.values()]
    timing = HEALTH_TIMING
    lines += [
        "",
        f"In a container: `interval: {timing.interval}s`, `timeout: {timing.timeout}s`,"
        f" `retries: {timing.retries}`, `start_period: {timing.start_period}s`.",
    ]
    return "\n".join(lines)


def limits() -> str:
    """What the fields of a public request may hold."""
    most = f"{model.MAX_UINT32:,}"
    rows = {
        "spec.job_type": f"1 to {texts.MAX_TYPE_LENGTH} printable characters",
        "spec.work_duration_ms": f"0 to {most}",
        "spec.payload_size_bytes": f"0 to {most}; a job that makes more than `MAX_OUTPUT_BYTES`"
        f" ({model.MAX_OUTPUT_BYTES:,}) is `FAILED` (`{model.OUTPUT_TOO_LARGE}`)",
        "spec.labels": f"at most {texts.MAX_LABELS}, {texts.MAX_LABELS_BYTES:,} bytes in all; a"
        f" name has 1 to {texts.MAX_LABEL_LENGTH} printable characters, a value may be empty",
        "client_request_id": f"empty, or at most {texts.MAX_KEY_LENGTH} printable characters",
        "job_id": "a UUID as it was given out: lower case, no spaces",
        "reason": f"at most {requests.MAX_REASON_LENGTH:,} characters",
        "status_filter": f"at most {rules.MAX_FILTERS}; empty: all",
        "page.page_size": f"0: {model.DEFAULT_PAGE_SIZE}; more than {model.MAX_PAGE_SIZE} are"
        f" {model.MAX_PAGE_SIZE}",
        "page.page_token": f"empty, or at most {requests.MAX_OFFSET_DIGITS} digits",
        "sort": "a member of `JobSort`",
    }
    lines = ["| field | allowed |", "|---|---|"]
    return "\n".join(lines + [f"| `{field}` | {allowed} |" for field, allowed in rows.items()])


TABLES = {
    "limits": limits,
    "endpoints": endpoints,
    "by_service": by_service,
    "health": health,
}


def render(page: str) -> str:
    """The page, with its tables as they should be."""

    def table(found: re.Match[str]) -> str:
        return f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}"

    return re.sub(r"(<!-- taskqueue: (\w+) -->)\n.*?(<!-- end -->)", table, page, flags=re.DOTALL)


def main() -> int:
    """Write the page, or with --check compare it."""
    before = PAGE.read_text("utf-8")
    after = render(before)
    if "--check" in sys.argv[1:] and after != before:
        print(f"{PAGE} is out of date: run scripts/taskqueue_doc.py", file=sys.stderr)
        return 1
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
