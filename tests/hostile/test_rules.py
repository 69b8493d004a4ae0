"""Every RPC and every route has a rule, and every rule is used."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, MethodDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from starlette.routing import BaseRoute

from jobqueue import pb
from jobqueue.access.callers import Role
from jobqueue.access.rules import GRPC, HTTP, RULES, BudgetKind
from jobqueue.api.grpc.server import SERVICES
from jobqueue.api.http.app import create_app
from jobqueue.cli.reference import with_rules
from jobqueue.taskqueue.grpc.servicers import SERVICE as TASKQUEUE
from tests.api.http.fake import FakeBackend

ROOT = Path(__file__).parents[2]
_MODULES = [
    importlib.import_module(found.name)
    for found in pkgutil.walk_packages(pb.__path__, f"{pb.__name__}.")
    if found.name.endswith("_pb2")
]
METHODS: dict[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method
    for file in (*_MODULES, health_pb2, reflection_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def _routes(routes: list[BaseRoute]) -> Iterator[tuple[str, str]]:
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from _routes(inner.routes)
            continue
        for verb in getattr(route, "methods", None) or ():
            yield verb, str(getattr(route, "path", ""))


def _lists(message: Descriptor, path: str = "", inside: tuple[Descriptor, ...] = ()) -> set[str]:
    """The paths of the repeated fields, in a message and in those that it holds."""
    found: set[str] = set()
    for field in message.fields:
        name = f"{path}{field.name}"
        if field.is_repeated:
            found.add(name)
        held = field.message_type
        if held is None or held in inside:
            continue
        if held.GetOptions().map_entry or held.file.package == "google.protobuf":
            continue
        found |= _lists(held, f"{name}.", (*inside, message))
    return found


def test_every_grpc_method_has_a_rule_and_no_rule_is_for_a_method_that_is_gone():
    assert set(GRPC) == set(METHODS)
    served = {*SERVICES, TASKQUEUE.full_name}
    assert served <= {method.rpartition("/")[0][1:] for method in GRPC}


def test_every_route_has_a_rule_and_no_rule_is_for_a_route_that_is_gone():
    routes = set(_routes(create_app(FakeBackend()).routes))
    assert {(verb, path) for verb, path in routes if verb != "HEAD"} == set(HTTP)


def test_every_rule_is_used():
    assert {*GRPC.values(), *HTTP.values()} == set(RULES)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_list_of_a_request_has_its_most_items(method):
    """A list without a limit would be built before anybody counts it."""
    assert _lists(METHODS[method].input_type) <= set(RULES[GRPC[method]].items)


def test_every_limit_of_a_list_is_of_a_list_that_exists():
    for action, rule in RULES.items():
        lists = [_lists(METHODS[method].input_type) for method in GRPC if GRPC[method] == action]
        assert set(rule.items) <= set().union(*lists), action
        assert all(most > 0 for most in rule.items.values()), action


def test_streams_are_counted_as_streams():
    for name, method in METHODS.items():
        streaming = method.client_streaming or method.server_streaming
        kinds = (BudgetKind.STREAM, BudgetKind.SUBMIT_STREAM, BudgetKind.WATCH)
        assert streaming == (RULES[GRPC[name]].kind in kinds), name


def test_what_is_open_changes_nothing_and_what_is_a_probe_is_read_only():
    for action, rule in RULES.items():
        if rule.roles is None or rule.kind is BudgetKind.PROBE:
            assert not rule.changes, action
            assert not rule.items, action
            assert action.startswith("server."), action
    for verb, path in HTTP:
        rule = RULES[HTTP[verb, path]]
        is_login = HTTP[verb, path] == "server.log_in"
        assert rule.roles is not None or is_login or (verb == "GET" and "{" not in path)


def test_no_action_is_for_every_role():
    assert all(rule.roles is None or rule.roles < frozenset(Role) for rule in RULES.values())


def test_the_page_about_security_shows_the_table():
    page = (ROOT / "docs" / "security.md").read_text()
    assert page == with_rules(page), "run: python -m jobqueue.cli.reference docs/security.md"


def test_every_test_that_shows_a_promise_exists():
    page = (ROOT / "docs" / "security.md").read_text()
    _, found, promises = page.partition("\n## What is promised\n")
    assert found
    rows = [line for line in promises.splitlines() if line.startswith("|")][2:]
    assert rows
    for row in rows:
        shown = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row.rsplit("|", 2)[1])
        assert shown, f"no test shows: {row}"
        for file, name in shown:
            source = (ROOT / file).read_text()
            assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), f"{file}::{name}"
