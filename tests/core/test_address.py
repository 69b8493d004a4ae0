"""Addresses as they are written."""

from __future__ import annotations

import pytest

from jobqueue.core.address import Address, WrongPort


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("db:5432", Address("db", 5432)),
        ("127.0.0.1:1", Address("127.0.0.1", 1)),
        ("[::1]:65535", Address("::1", 65535)),
    ],
)
def test_an_address_is_written_as_it_is_read(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["kafka", "[::1]"])
def test_a_port_may_be_left_out_only_where_there_is_a_default(text: str) -> None:
    assert Address.parse(text, 9092).port == 9092
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        Address.parse(text)


@pytest.mark.parametrize(
    "text",
    [*("", ":", "a:", ":1", "::1:1", "[::1", "[]:1", "[::1]1", "a b:1", "a\t:1"),
     *("a,b:1", "u@a:1", "a/b:1", "a:b", "a:٣", "a:-1", "[a]b:1", "a]:1")],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        Address.parse(text)


@pytest.mark.parametrize("port", ["0", "65536", "99999999999"])
def test_a_port_that_nobody_can_listen_on_is_refused(port: str) -> None:
    with pytest.raises(WrongPort, match="the port must be 1 to 65535"):
        Address.parse(f"a:{port}")
