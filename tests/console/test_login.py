"""Logging in to the console, and the rights and the end of a session."""

from __future__ import annotations

import pytest

from jobqueue.access.callers import Role
from jobqueue.access.keyring import Keyring, parse_keys
from jobqueue.access.policy import Access, Shown
from jobqueue.access.sessions import LONGEST, ConsoleSessions, cookie_name, session_in
from jobqueue.access.tokens import TokenVerifier
from jobqueue.core.clock import ManualClock
from jobqueue.core.errors import InvalidArgument, Unauthenticated
from jobqueue.server.process import ServerProcess
from tests.access.jwt import sign
from tests.console.person import at
from tests.hostile.known_callers import key_of, serving

KEY = "a-key-of-an-operator-0123456789"
SECRET = b"a secret of thirty-two bytes or more"


def access(clock: ManualClock, *entries: str, secret: bytes = SECRET) -> Access:
    return Access(
        keys=Keyring(parse_keys(entries or [f"ann:operator:{KEY}"], "auth.api_keys")),
        tokens=TokenVerifier(SECRET, clock, audience=""),
        sessions=ConsoleSessions(secret, clock),
    )


def test_a_session_names_its_caller_and_holds_no_key():
    clock = ManualClock()
    caller, session = access(clock).log_in(KEY)
    assert (caller.name, caller.roles) == ("ann", frozenset({Role.OPERATOR}))
    assert KEY not in session
    other = access(clock).identify(Shown(session=session, address="10.0.0.1"))
    assert (other.name, other.roles, other.address) == (
        "ann",
        frozenset({Role.OPERATOR}),
        "10.0.0.1",
    )


def test_a_session_ends_after_half_a_day_with_its_key_or_its_token():
    clock = ManualClock()
    known = access(clock)
    _, session = known.log_in(KEY)
    token = sign({"sub": "bob", "roles": ["viewer"], "exp": clock.now() + 60}, SECRET)
    _, short = known.log_in(token)
    assert known.identify(Shown(session=short)).roles == {Role.VIEWER}
    fewer = access(clock, f"ann:viewer:{KEY}")
    assert fewer.identify(Shown(session=session)).roles == {Role.VIEWER}
    without = access(clock, "ann:operator:another-key-0123456789")
    with pytest.raises(Unauthenticated, match="key was removed"):
        without.identify(Shown(session=session))
    clock.advance(61)
    with pytest.raises(Unauthenticated, match="has expired"):
        known.identify(Shown(session=short))
    assert known.identify(Shown(session=session)).name == "ann"
    clock.advance(LONGEST)
    with pytest.raises(Unauthenticated, match="has expired"):
        known.identify(Shown(session=session))


def test_a_session_that_was_changed_or_signed_elsewhere_is_refused():
    clock = ManualClock()
    known = access(clock)
    _, session = known.log_in(KEY)
    body, _, signature = session.partition(".")
    _, elsewhere = access(clock, secret=b"").log_in(KEY)
    forged = [elsewhere, body, f"{body}.", f"{body}x.{signature}", f"{body}.{'0' * 64}", "é.é", "."]
    for text in forged:
        with pytest.raises(Unauthenticated, match="did not sign the session"):
            known.identify(Shown(session=text))
    form = known.sessions.form_token("ann", session)
    for text in (f"{body}.{form}", f"{'ann'}.{form}"):  # a form's token signs no session
        with pytest.raises(Unauthenticated):
            known.identify(Shown(session=text))


def test_a_short_secret_is_refused():
    with pytest.raises(InvalidArgument, match=r"auth\.session_secret"):
        ConsoleSessions(b"short")


def test_the_servers_of_one_machine_have_cookies_of_their_own():
    assert cookie_name(b"localhost:8080") != cookie_name(b"localhost:8081")
    assert cookie_name(b"[::1]") == cookie_name(b"queue.example") == "jq_session"
    headers = [(b"host", b"localhost:8081"), (b"cookie", b"a=b; jq_session_8080=x")]
    assert session_in(headers) == ""
    assert session_in([*headers, (b"cookie", b"jq_session_8081=y")]) == "y"


async def test_a_person_without_a_session_gets_the_login_and_then_the_page(keyed: ServerProcess):
    async with at(keyed) as person:
        page = await person.open("/ui/queues?name=def")
        assert page.answer.url.path == "/ui/login"
        assert "Queues" not in page.links
        page = await person.press("Log in", credential=f"  {key_of('ops')}\n")
        assert (page.answer.url.path, page.answer.url.query) == ("/ui/queues", b"name=def")
        assert "ops" in page.text
        [answer] = [one for one in [person.client.cookies] if one]
        assert len(answer) == 1
        page = await person.press("Log out")
        assert page.answer.url.path == "/ui/login"
        assert "You are logged out." in page.text
        assert (await person.open("/ui/queues")).answer.url.path == "/ui/login"


async def test_the_cookie_is_for_no_script_and_no_other_site(keyed: ServerProcess):
    async with at(keyed) as person:
        await person.open("/ui/login")
        fields = {**person.page.form("Log in").fields, "credential": key_of("guest")}
        for scheme, secure in (("http", False), ("https", True)):
            host = person.client.base_url.netloc.decode()
            answer = await person.client.post(
                "/ui/login", data=fields, headers={"Origin": f"{scheme}://{host}"}
            )
            assert answer.status_code == 303
            assert key_of("guest") not in answer.headers["set-cookie"]
            name, *parts = answer.headers["set-cookie"].split("; ")
            assert name.startswith(f"jq_session_{person.client.base_url.port}=")
            # Without Path and Domain it is for /ui of this host alone.
            assert set(parts) == {"HttpOnly", "SameSite=Strict", *(["Secure"] if secure else [])}


async def test_a_session_opens_the_console_and_nothing_else(keyed: ServerProcess):
    async with at(keyed) as person:
        await person.log_in("ops")
        [(name, value)] = person.client.cookies.items()
        cookie = {"Cookie": f"{name}={value}"}
        assert (await person.client.get("/ui/queues", headers=cookie)).status_code == 200
        for path in ("/queues", "/jobs", "/status", "/metrics"):
            assert (await person.client.get(path, headers=cookie)).status_code == 401
        refused = await person.client.post("/queues/default/pause", headers=cookie)
        assert refused.status_code == 401


async def test_a_wrong_key_and_a_key_without_the_role_are_told_apart(keyed: ServerProcess):
    async with at(keyed) as person:
        await person.open("/ui/")
        page = await person.press("Log in", credential="a-wrong-key-0123456789")
        assert page.status == 401
        assert "the credential is not valid" in page.text
        assert "a-wrong-key" not in page.html
        page = await person.press("Log in", credential=key_of("web"))
        assert page.status == 403
        assert "needs the role operator or viewer; 'web' does not have it" in page.text
        assert not person.client.cookies
        page = await person.press("Log in", credential=key_of("guest"))
        assert page.answer.url.path == "/ui/"


@pytest.mark.parametrize(
    ("wanted", "path"),
    [
        ("queues/default", "/ui/queues/default"),
        ("//evil.example/", "/ui/evil.example/"),
        ("https:evil.example", "/ui/https:evil.example"),
        ("../../jobs", "/ui/"),
        ("\\\\evil.example", "/ui/%5C%5Cevil.example"),
        ("a\r\nSet-Cookie: x=y", "/ui/a%0D%0ASet-Cookie:%20x=y"),
    ],
)
async def test_a_login_leads_to_pages_of_the_console_only(
    keyed: ServerProcess, wanted: str, path: str
):
    async with at(keyed) as person:
        await person.open("/ui/login")
        await person.client.get("/ui/login", params={"next": wanted})
        fields = {**person.page.form("Log in").fields, "credential": key_of("guest")}
        host = person.client.base_url.netloc.decode()
        answer = await person.client.post(
            "/ui/login", data={**fields, "next": wanted}, headers={"Origin": f"http://{host}"}
        )
        to = answer.url.join(answer.headers["location"])
        assert (to.host, to.raw_path.decode()) == ("127.0.0.1", path)


async def test_servers_with_one_secret_take_each_others_sessions():
    shared = "a secret of thirty-two bytes or more"
    async with (
        serving(auth__session_secret=shared) as one,
        serving(auth__session_secret=shared) as two,
        serving() as stranger,
    ):
        async with at(one) as person:
            await person.log_in("ops")
            [value] = person.client.cookies.values()
        for server, path in ((two, "/ui/queues"), (stranger, "/ui/login")):
            async with at(server) as person:
                name = cookie_name(person.client.base_url.netloc)
                person.client.cookies.set(name, value)
                page = await person.open("/ui/queues")
                assert page.answer.url.path == path


async def test_a_session_lasts_while_the_browser_does(keyed: ServerProcess):
    """The server's clock decides when the session ends."""
    async with at(keyed) as person:
        await person.log_in("ops")
        [cookie] = person.client.cookies.jar
        assert cookie.expires is None
