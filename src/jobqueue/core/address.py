"""Parse and format the addresses of servers."""

from __future__ import annotations

from typing import NamedTuple

MAX_PORT = 65535


class WrongPort(ValueError):
    """Reports a port outside 1 to ``MAX_PORT``."""

    def __init__(self) -> None:
        super().__init__(f"the port must be 1 to {MAX_PORT}")


class Address(NamedTuple):
    """A host and a port, written as ``HOST:PORT``, or ``[HOST]:PORT`` for an IPv6 address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, default_port: int | None = None) -> Address:
        """Parse ``HOST:PORT``, or ``HOST`` alone if ``default_port`` is given.

        Raises ValueError if the text is neither.
        """
        if text.startswith("["):
            host, bracket, rest = text[1:].partition("]")
            mark, port = rest[:1], rest[1:]
            if not bracket or mark not in ("", ":"):
                raise ValueError("expected [HOST]:PORT")
        else:
            host, mark, port = text.partition(":")
        if not mark and default_port is not None:
            port = str(default_port)
        if not host or not port or not host.isprintable() or any(c in " ,/@?#[]" for c in host):
            raise ValueError("expected HOST:PORT")
        if not (port.isascii() and port.isdigit()):
            raise ValueError("expected a number after HOST:")
        if not 1 <= int(port) <= MAX_PORT:
            raise WrongPort
        return cls(host, int(port))
