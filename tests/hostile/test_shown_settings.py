"""The settings that a server shows to operators have no secrets, and only operators see them."""

from __future__ import annotations

import pytest

from tests.console.person import at
from tests.hostile.known_callers import ROLES, key_of, over_http, serving

SECRET = "hush-hush-0123456789-0123456789-abcdef"
SECRETS = ("auth__jwt_secret", "auth__session_secret", "kafka__password", "redis__password")


@pytest.mark.parametrize("name", [None, *ROLES])
async def test_operators_see_settings_without_secrets_and_others_none(name: str | None):
    flags = dict.fromkeys(SECRETS, SECRET) | {"redis__url": f"redis://u:{SECRET}@127.0.0.1:1/0"}
    async with serving(known=True, **flags) as server, over_http(server, name) as client:
        answer = await client.get("/configuration")
        if name is None or "operator" not in ROLES[name]:
            assert answer.status_code == (401 if name is None else 403)
            assert "auth.jwt_secret" not in answer.text
        else:
            assert answer.status_code == 200
            for shown in ("auth.jwt_secret", "redis.url"):
                assert shown in answer.text
        texts = [answer.text]
        if name in ("ops", "guest"):
            async with at(server) as person:
                await person.log_in(name)
                page = await person.open("/ui/system")
                assert ("auth.jwt_secret" in page.text) is (name == "ops")
                texts.append(page.answer.text)
        for text in texts:
            assert SECRET not in text
            assert not any(key_of(caller) in text for caller in ROLES)
