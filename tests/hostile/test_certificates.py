"""Certificates that nobody gave a role to, and services that are open to the network."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobqueue.access.callers import Role
from jobqueue.access.policy import Access, Shown, parse_certificate_roles, permit
from jobqueue.core.errors import PermissionDenied
from tests import ports
from tests.access.certificates import Authority
from tests.cli import processes


def test_a_certificate_has_no_role_until_it_is_given_one() -> None:
    for roles in ({}, parse_certificate_roles(["bob:client"], "tls.client_roles")):
        access = Access(certificates=True, certificate_roles=roles)
        alice = access.identify(Shown(certificate="alice"))
        assert (alice.name, alice.roles) == ("alice", frozenset())
        with pytest.raises(PermissionDenied, match=r"setting tls.client_roles gives certificates"):
            permit(alice, {Role.CLIENT}, "job.submit")
    roles = parse_certificate_roles(["*:client+worker", "ops:operator"], "tls.client_roles")
    access = Access(certificates=True, certificate_roles=roles)
    assert access.identify(Shown(certificate="alice")).roles == {Role.CLIENT, Role.WORKER}
    assert access.identify(Shown(certificate="ops")).roles == {Role.OPERATOR}


def test_a_server_without_a_table_of_roles_says_so_and_lets_no_certificate_do_anything(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    ours, theirs = authority.issue("server", "IP:127.0.0.1"), authority.issue("alice")
    told = {
        "JQ_TLS_CERT": str(ours.cert),
        "JQ_TLS_KEY": str(ours.key),
        "JQ_TLS_CLIENT_CA": str(authority.ca),
    }
    shown = ("--tls-ca", authority.ca, "--tls-cert", theirs.cert, "--tls-key", theirs.key)
    with processes.server(tmp_path, **told) as server:
        ready = server.line("ready")
        server.line("tls.client_ca is set and tls.client_roles is not")
        for command in (("job", "submit", "default", "1"), ("queue", "list"), ("status",)):
            done = processes.run(
                "ctl", "--server", ready["grpc"], *map(str, shown), *command, cwd=tmp_path
            )
            assert done.returncode == 3, done.stderr
            assert "tls.client_roles" in done.stderr
        assert server.stop() == 0


@pytest.mark.parametrize(("bind", "warned"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_a_plaintext_service_on_the_network_warns_at_its_start(
    tmp_path: Path, bind: str, warned: bool
) -> None:
    told = {"BIND_HOST": bind, "JOB_PORT": str(ports.take())}
    with processes.Service("service", "job", cwd=tmp_path, **told) as service:
        service.line("ready")
        if warned:
            line = service.line("0.0.0.0 is open to the network without TLS")
            assert (line["level"], line["event"]) == ("WARNING", "open_to_network")
        assert service.stop() == 0
    assert bool([line for line in service.lines if line["level"] == "WARNING"]) is warned
