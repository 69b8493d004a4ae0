"""Certificates that nobody gave a role to, and services that are open to the network."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobqueue.access.callers import Role
from jobqueue.access.policy import Access, Shown, parse_certificate_roles, permit
from jobqueue.core.errors import PermissionDenied
from jobqueue.taskqueue.components.model import Actor
from jobqueue.taskqueue.grpc.callers import CALLER, CallerRefused, heard
from tests import ports
from tests.access.callers import FACES, OK, calling
from tests.access.certificates import Authority
from tests.cli import processes
from tests.hostile.known_callers import serving


def test_a_certificate_has_no_role_until_it_is_given_one() -> None:
    for roles in ({}, parse_certificate_roles(["bob:client"], "tls.client_roles")):
        access = Access(certificates=True, certificate_roles=roles)
        alice = access.identify(Shown(certificate="alice"))
        assert (alice.name, alice.roles) == ("alice", frozenset())
        with pytest.raises(PermissionDenied, match=r"tls.client_roles gives roles to certificates"):
            permit(alice, {Role.CLIENT}, "job.submit")
    roles = parse_certificate_roles(["*:client+worker", "ops:operator"], "tls.client_roles")
    access = Access(certificates=True, certificate_roles=roles)
    assert access.identify(Shown(certificate="alice")).roles == {Role.CLIENT, Role.WORKER}
    assert access.identify(Shown(certificate="ops")).roles == {Role.OPERATOR}


@pytest.mark.parametrize("face", FACES)
async def test_only_a_common_name_or_a_dns_name_names_a_caller(face, tmp_path):
    """An address, a URI or a mail address was taken for the name of that text."""
    authority = Authority(tmp_path)
    ours = authority.issue("server", "IP:127.0.0.1")
    unnamed = [
        authority.issue(kind, f"{kind}:{value}", subject="/O=nobody")
        for kind, value in (("URI", "ops"), ("IP", "10.0.0.7"), ("email", "ops@jobs.example"))
    ]
    second = authority.issue(
        "second", "IP:10.0.0.7,URI:ops,email:ops@jobs.example,DNS:web.example", subject="/O=nobody"
    )
    async with serving(
        known=False,
        tls__cert=str(ours.cert),
        tls__key=str(ours.key),
        tls__client_ca=str(authority.ca),
        tls__client_roles="web.example:client,*:operator",
    ) as server:
        http, grpc = (int(at.rpartition(":")[2]) for at in (server.http_url, server.grpc_target))
        served: Any = SimpleNamespace(http=http, grpc=grpc)
        for pair in unnamed:
            async with calling(face, served, authority, pair) as caller:
                assert await caller.operate([]) == "UNAUTHENTICATED"
        async with calling(face, served, authority, second) as caller:
            assert await caller.operate([]) == "PERMISSION_DENIED"
            assert await caller.submit([]) == OK


NUL_NAMES = {
    "common": ("ops\0.mallory.example", ""),
    "first": ("\0mallory", "ops"),
    "dns": ("", "ops\0.mallory.example"),
    "beside": ("ops", "web\0.mallory.example"),
}


@pytest.mark.parametrize("face", FACES)
async def test_a_name_with_a_nul_in_it_names_nobody(face, tmp_path):
    """gRPC hands over what stands before the NUL."""
    authority = Authority(tmp_path)
    ours = authority.issue("server", "IP:127.0.0.1")
    unnamed = {kind: authority.issue_any(kind, *names) for kind, names in NUL_NAMES.items()}
    named = [authority.issue_any("ops", "ops"), authority.issue_any("alternative", "", "ops")]
    async with serving(
        known=False,
        tls__cert=str(ours.cert),
        tls__key=str(ours.key),
        tls__client_ca=str(authority.ca),
        tls__client_roles="ops:operator",
    ) as server:
        http, grpc = (int(at.rpartition(":")[2]) for at in (server.http_url, server.grpc_target))
        served: Any = SimpleNamespace(http=http, grpc=grpc)
        for pair in named:
            async with calling(face, served, authority, pair) as caller:
                assert await caller.operate([]) == OK
        answers = {}
        for kind, pair in unnamed.items():
            async with calling(face, served, authority, pair) as caller:
                answers[kind] = await caller.operate([])
        assert answers == dict.fromkeys(NUL_NAMES, "UNAUTHENTICATED")


@pytest.mark.parametrize("said", ["coordinator", "gateway", "worker"])
def test_a_certificate_that_names_nobody_is_no_service(tmp_path: Path, said: str) -> None:
    """What such a caller says of itself does not count."""
    authority = Authority(tmp_path)
    pem = authority.issue_any("nul", f"{said}\0.mallory.example").cert.read_bytes()
    cut = {"x509_common_name": [said.encode()], "x509_pem_cert": [pem]}
    said_too = SimpleNamespace(
        invocation_metadata=lambda: ((CALLER, said),), auth_context=lambda: cut
    )
    with pytest.raises(CallerRefused, match="the certificate says ''"):
        heard(said_too).actor()
    silent = SimpleNamespace(invocation_metadata=tuple, auth_context=lambda: cut)
    assert heard(silent).actor() is Actor.CLIENT


@pytest.mark.slow
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
        warned = [line["message"] for line in server.lines if line["level"] == "WARNING"]
        assert any("tls.client_roles is not" in text for text in warned)
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
        assert service.stop() == 0
    said = [
        (line["event"], line["message"]) for line in service.lines if line["level"] == "WARNING"
    ]
    assert [event for event, _ in said] == ["open_to_network"] * warned
    assert all(
        f"0.0.0.0:{told['JOB_PORT']} is open to the network without TLS" in text for _, text in said
    )
