"""Environment variables that look like settings and are none: mostly misspelt ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping

PREFIX = "JQ_"
# Not settings: what clients connect with, and what a program that runs a job is told.
_OF_OTHERS = frozenset(
    {
        "JQ_API_KEY",
        "JQ_API_KEY_FILE",
        "JQ_ATTEMPT",
        "JQ_COMMIT",
        "JQ_JOB_ID",
        "JQ_QUEUE",
        "JQ_TYPE",
        "JQ_URL",
    }
)
_OF_TESTS = "JQ_TEST_"
# Kubernetes and Docker describe a service that is named jq-something to every container.
_OF_SERVICES = re.compile(
    r"JQ_\w*(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def unknown_variables(environ: Mapping[str, str], known: Collection[str]) -> list[str]:
    """A warning for each variable that nobody reads, with the setting that may be meant."""
    return [_warning(name, known) for name in environ if _is_unknown(name, environ[name], known)]


def _is_unknown(name: str, value: str, known: Collection[str]) -> bool:
    if not name.startswith(PREFIX) or name.startswith(_OF_TESTS):
        return False
    if name in known or name in _OF_OTHERS or _OF_SERVICES.fullmatch(name):
        return False
    return not (name.endswith("_PORT") and _SERVICE_ADDRESS.match(value))


def _warning(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    near += difflib.get_close_matches(name, sorted(_OF_OTHERS), n=1, cutoff=0.85)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"environment variable {name} is unknown and ignored{meant}"
