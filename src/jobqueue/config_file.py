"""Read settings and their lines from a YAML file, and find unknown environment variables."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from jobqueue.core.errors import Code, JobQueueError
from jobqueue.redaction import redact_value

_MAX_BYTES = 1 << 20
PREFIX = "JQ_"
# Variables that clients read, or that a worker sets for a program that runs a job.
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
# Kubernetes and Docker set such variables in every container for a service named jq-something.
_OF_SERVICES = re.compile(
    r"JQ_\w*(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


class ConfigError(JobQueueError):
    """Reports settings that are not valid; the message has one line for each problem."""

    code = Code.INVALID_ARGUMENT

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def read_file(file: Path, known: Collection[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of a file's settings, and the place (``file:line``) of each, by full name.

    Raises ConfigError with all problems, also if a name is not in ``known``.
    """
    try:
        with file.open("rb") as stream:
            raw = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError([f"--config {file}: {error.strerror or error}"]) from None
    if len(raw) > _MAX_BYTES:
        raise ConfigError([f"--config {file}: the file must not be larger than {_MAX_BYTES} bytes"])
    reader = _FileReader(file, known)
    try:
        reader.read(raw)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
        # The parser's message may quote a secret from the file.
        raise ConfigError(
            [
                f"{where}: not valid YAML at this line and column; a text that begins with one of"
                " * & ! % @ ` or holds a colon and a space must be in quotes"
            ]
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError([f"{file}: not valid YAML"]) from None
    if reader.problems:
        raise ConfigError(reader.problems)
    return reader.values, reader.places


class _FileReader:
    """Reads the settings from the nodes of a YAML file. Only the nodes have line numbers."""

    def __init__(self, file: Path, known: Collection[str]) -> None:
        self._file = file
        self._known = known
        self.values: dict[str, Any] = {}
        self.places: dict[str, str] = {}
        self.problems: list[str] = []

    def read(self, raw: bytes) -> None:
        loader = yaml.SafeLoader(raw)
        try:
            root = loader.get_single_node()
            if root is not None:
                self._walk(loader, root, "")
        finally:
            loader.dispose()

    def _place(self, node: yaml.Node) -> str:
        return f"{self._file}:{node.start_mark.line + 1}"

    def _walk(self, loader: yaml.SafeLoader, node: yaml.Node, prefix: str) -> None:
        """Read the settings below a node.

        ``prefix`` is the full name of the section with a dot at its end, or empty at the root.
        """
        level = sorted(
            {p[len(prefix) :].split(".")[0] for p in self._known if p.startswith(prefix)}
        )
        if not isinstance(node, yaml.MappingNode):
            if isinstance(node, yaml.ScalarNode) and node.value in ("", "~", "null"):
                return  # a section with nothing in it
            name = prefix.rstrip(".") or "the file"
            self.problems.append(
                f"{self._place(node)}: {name} must hold keys; allowed: {', '.join(level)}"
            )
            return
        seen: set[str] = set()
        for key_node, value_node in node.value:
            name = key_node.value if isinstance(key_node, yaml.ScalarNode) else "?"
            path = prefix + name
            if name not in level:
                self.problems.append(self._unknown(key_node, prefix, name, level))
            elif name in seen:
                self.problems.append(f"{self._place(key_node)}: {path} is given twice")
            elif path in self._known:
                self.values[path] = loader.construct_object(value_node, deep=True)
                self.places[path] = self._place(key_node)
            else:
                self._walk(loader, value_node, path + ".")
            seen.add(name)

    def _unknown(self, node: yaml.Node, prefix: str, name: str, level: list[str]) -> str:
        # In `{password:x}`, which lacks a space, YAML takes the password for a part of the key.
        name = redact_value(name).partition(":")[0]
        near = difflib.get_close_matches(name, level, n=1)
        hint = f" (did you mean {prefix}{near[0]}?)" if near else ""
        place = self._place(node)
        return f"{place}: unknown key {prefix}{name}{hint}; allowed here: {', '.join(level)}"


def unknown_variables(environ: Mapping[str, str], known: Collection[str]) -> list[str]:
    """Return a warning for each unknown ``JQ_`` variable, with the most similar known names."""
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
