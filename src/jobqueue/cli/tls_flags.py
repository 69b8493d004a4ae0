"""Define the TLS flags of clients. An API key has no flag, because other users can read flags."""

from __future__ import annotations

from typing import Annotated

import typer

TlsCaOption = Annotated[
    str | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help="Use TLS, and trust this authority (PEM). Default: the system's authorities.",
    ),
]
TlsCertOption = Annotated[
    str | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="Client certificate for the server (PEM); needs --tls-key.",
    ),
]
TlsKeyOption = Annotated[
    str | None,
    typer.Option("--tls-key", metavar="FILE", help="Key of the client certificate (PEM)."),
]
