"""The flags of a client that speaks TLS. A key to show to the server is no flag: everybody can
read a command line."""

from __future__ import annotations

from typing import Annotated

import typer

TlsCaOption = Annotated[
    str | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help="Speak TLS, and trust this authority (PEM). Default: those of the system.",
        show_default=False,
    ),
]
TlsCertOption = Annotated[
    str | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="Client certificate to show to the server (PEM); takes --tls-key.",
        show_default=False,
    ),
]
TlsKeyOption = Annotated[
    str | None,
    typer.Option(
        "--tls-key",
        metavar="FILE",
        help="Key of the client certificate (PEM).",
        show_default=False,
    ),
]
