"""Whether a jq-server or jq-worker beside us is ready: exit status 0 or 1; one line says why.

    python -m scripts.ready http://127.0.0.1:8080/readyz
    python -m scripts.ready http://127.0.0.1:9464/healthz

For the health checks of containers: the standard library is all it needs. The certificate of an
https address is not judged, since it seldom names the loopback address.
"""

from __future__ import annotations

import argparse
import http.client
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

TIMEOUT = 1.5  # seconds; the check as a whole is given two


def address(text: str) -> tuple[bool, str, int, str]:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port or parts.scheme not in ("http", "https") or not parts.path:
        raise argparse.ArgumentTypeError(f"{text!r} is not http://HOST:PORT/PATH, or https://")
    return parts.scheme == "https", host, port, parts.path


def why_not(secure: bool, host: str, port: int, path: str) -> str:
    """Empty when it is ready."""
    connection: http.client.HTTPConnection
    if secure:
        import ssl  # takes longer than the rest

        trusting = ssl.create_default_context()
        trusting.check_hostname = False
        trusting.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=trusting)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        said = answer.read(500).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    finally:
        connection.close()
    return "" if answer.status == 200 else f"{answer.status}: {said}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.ready", description=__doc__)
    parser.add_argument("url", type=address, metavar="URL")
    secure, host, port, path = parser.parse_args(argv).url
    why = why_not(secure, host, port, path)
    print(f"{host}:{port}{path}: {why or 'ready'}", flush=True)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
