"""jq-service as a person calls it, without a service that runs."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from jobqueue import logs
from jobqueue.cli import service as program
from jobqueue.taskqueue.designs.catalogue import SERVICES
from tests.cli import processes
from tests.taskqueue.startup.test_catalogue import ENOUGH

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """jq-service in this process, in an environment of its own."""

    def call(*args: str, **environ: str) -> tuple[int, str, str]:
        for service in SERVICES.values():
            for variable in service.all_variables:
                monkeypatch.delenv(variable.name, raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        status = program.run(list(args))
        return (status, *capfd.readouterr())

    return call


@pytest.mark.req("tq:STARTUP")
@pytest.mark.parametrize("name", SERVICES)
def test_help_has_the_variables_and_examples(run: Run, name: str, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    status, out, _ = run(name, "--help")
    assert status == 0
    for variable in SERVICES[name].all_variables:
        assert f"{variable.name} ({program.said_default(variable)}): {variable.meaning}" in out
    assert "Examples" in out
    assert f"jq-service {name} --check" in out


@pytest.mark.parametrize("name", SERVICES)
def test_check_prints_what_counts_and_starts_nothing(run: Run, name: str) -> None:
    status, out, _ = run(name, "--check", "-o", "json", LOG_LEVEL="debug", **ENOUGH[name])
    assert status == 0
    shown = json.loads(out)
    assert shown | ENOUGH[name] | {"LOG_LEVEL": "debug"} == shown
    assert list(shown) == [variable.name for variable in SERVICES[name].all_variables]
    status, table, _ = run(name, "--check", **ENOUGH[name])
    assert status == 0
    assert [line.split()[0] for line in table.splitlines()[1:]] == list(shown)


@pytest.mark.req("tq:STARTUP")
@pytest.mark.parametrize("name", [name for name in SERVICES if ENOUGH[name]])
def test_without_its_required_variables_it_does_not_start(run: Run, name: str) -> None:
    status, out, err = run(name)
    assert status == 2
    assert out == ""  # no line of a log: it never came so far
    for variable in ENOUGH[name]:
        assert f"{variable}: is required: " in err


@pytest.mark.req("tq:STARTUP")
def test_a_real_process_says_so_and_fails(tmp_path) -> None:
    ended = processes.run(
        *("service", "gateway"), cwd=tmp_path, BIND_HOST="127.0.0.1", GATEWAY_PORT="not-a-port"
    )
    assert ended.returncode == 2
    assert "JOB_SERVICE_ADDR: is required: HOST:PORT" in ended.stderr
    assert "GATEWAY_PORT: 'not-a-port' is not allowed: a port, 1 to 65535" in ended.stderr
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr


@pytest.mark.req("tq:STARTUP", "tq:LOG", "tq:LOCK-34")
@pytest.mark.parametrize(
    ("environ", "level", "form"),
    [({}, "info", "json"), ({"LOG_LEVEL": "WARNING", "LOG_FORMAT": "text"}, "warning", "text")],
)
def test_the_log_is_as_the_variables_say(run: Run, monkeypatch, environ, level, form) -> None:
    told: list[object] = []
    monkeypatch.setattr(logs, "configure", lambda *args, **more: told.append((args, more)))
    monkeypatch.setattr(program, "run_service", lambda serve, log: 0)
    run("job", **environ)
    assert told == [(("job", level, form), {"always": ("method", "event")})]


def test_an_unknown_service_is_refused(run: Run) -> None:
    status, _, err = run("mailer")
    assert status == 2
    assert "mailer" in err
