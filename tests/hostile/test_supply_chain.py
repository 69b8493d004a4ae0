"""What is installed from others is what was pinned, file by file, and can be listed."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import patience

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
FOR_DEVELOPERS = {"dev", "bench"}
FOR_HTTP = ("fastapi", "httptools", "jinja2", "uvicorn")
SMALL = [line for line in PROJECT["project"]["dependencies"] if not line.startswith(FOR_HTTP)]
LISTS = {
    "run.txt": PROJECT["project"]["dependencies"],
    "extras.txt": [
        *PROJECT["project"]["dependencies"],
        *(line for name in EXTRAS.keys() - FOR_DEVELOPERS for line in EXTRAS[name]),
    ],
    "dev.txt": [*PROJECT["project"]["dependencies"], *chain(*EXTRAS.values())],
    "build.txt": PROJECT["build-system"]["requires"],
    "bench.txt": [*PROJECT["project"]["dependencies"], *EXTRAS["bench"]],
    "worker.txt": [*SMALL, *EXTRAS["postgres"], *EXTRAS["redis"], *EXTRAS["kafka"]],
    "taskqueue.txt": SMALL,
}


def entries(name: str) -> dict[str, str]:
    """Package -> its line, with the hashes."""
    text = (ROOT / "pins" / name).read_text().replace(" \\\n", " ")
    lines = [
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    return {canonicalize_name(re.split(r"[\[=]", line)[0]): line for line in lines}


def pinned(name: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Package -> its version and hashes."""
    found = {}
    for package, line in entries(name).items():
        what, *hashes = line.split(" --hash=sha256:")
        [only] = Requirement(what).specifier
        assert only.operator == "==", line
        assert all(re.fullmatch(r"[0-9a-f]{64} *", each) for each in hashes), line
        found[package] = (only.version, frozenset(each.strip() for each in hashes))
    return found


@pytest.mark.parametrize("name", LISTS)
def test_every_package_is_pinned_with_its_hashes(name: str) -> None:
    found = pinned(name)
    assert [package for package, (_, hashes) in found.items() if not hashes] == []
    # Everybody installs from the index that they have set up.
    assert "://" not in (ROOT / "pins" / name).read_text()


@pytest.mark.parametrize("name", LISTS)
def test_the_pins_fit_the_project(name: str) -> None:
    """If this fails: make pins."""
    found = pinned(name)
    for line in LISTS[name]:
        asked = Requirement(line)
        version, _ = found[canonicalize_name(asked.name)]
        assert asked.specifier.contains(version, prereleases=True), line


def test_a_package_that_others_ask_for_with_an_extra_is_pinned_with_it() -> None:
    """pip 23.2 takes the newest release of it otherwise, and misses its hashes."""
    lines = {
        package: Requirement(line.split(" ;")[0].split(" --")[0])
        for package, line in entries("dev.txt").items()
    }
    for package, line in lines.items():
        try:
            needs = importlib.metadata.requires(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform or version of Python
        for need in map(Requirement, needs):
            asked = need.marker is None or any(
                need.marker.evaluate({"extra": extra}) for extra in ["", *line.extras]
            )
            pin = lines.get(canonicalize_name(need.name))
            if asked and pin is not None:
                assert need.extras <= pin.extras, f"{package} asks for {need}"


def test_the_lists_agree_and_a_server_needs_no_development_tools() -> None:
    everything = pinned("dev.txt")
    for name in LISTS:
        assert pinned(name).items() <= everything.items()
    run, extras = pinned("run.txt"), pinned("extras.txt")
    assert run.keys() <= extras.keys()
    assert pinned("taskqueue.txt").keys() <= pinned("worker.txt").keys() <= extras.keys()
    assert {"fastapi", "uvicorn", "starlette", "matplotlib"}.isdisjoint(pinned("worker.txt"))
    tools = {canonicalize_name(Requirement(line).name) for line in EXTRAS["dev"]}
    assert tools.isdisjoint(extras)


@pytest.mark.parametrize(
    ("target", "lists"),
    [("run", ["pins/build.txt", "pins/run.txt"]), ("setup", ["pins/dev.txt"])],
)
def test_make_installs_with_hashes_first_and_then_its_own_source(
    target: str, lists: list[str]
) -> None:
    said = subprocess.run(
        ["make", "-n", "-B", target], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.replace("\\\n", " ")
    installs = [line for line in said.splitlines() if " pip install " in line]
    assert len(installs) == 2, said
    packages, source = installs
    for option in ("--require-hashes", "--only-binary :all:", *(f"-r {name}" for name in lists)):
        assert option in packages
    assert packages.count(" -r ") == len(lists)
    # Neither what it needs nor what builds it is fetched now.
    assert source.rstrip().endswith("--no-deps --no-build-isolation -e .")


def test_a_file_that_was_exchanged_is_not_installed(tmp_path: Path) -> None:
    """An index, or who stands in for it, offers another file under a pinned name and version."""
    version, _ = pinned("run.txt")["h11"]
    wheel = tmp_path / f"h11-{version}-py3-none-any.whl"
    folder = f"h11-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("h11/__init__.py", "raise SystemExit('evil')")
        archive.writestr(
            f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: h11\nVersion: {version}"
        )
        archive.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any")
        archive.writestr(f"{folder}/RECORD", "")
    list_of_one = tmp_path / "list.txt"
    list_of_one.write_text(entries("run.txt")["h11"])
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--no-index", "--find-links", str(tmp_path)),
            *("--require-hashes", "--no-deps", "--target", str(tmp_path / "into")),
            *("-r", str(list_of_one)),
        ],
        capture_output=True,
        text=True,
        timeout=patience.longest(60),
    )
    assert ran.returncode != 0
    assert "DO NOT MATCH THE HASHES" in ran.stderr
    assert not (tmp_path / "into").exists()


def test_what_the_wheel_needs_can_be_listed() -> None:
    """In CycloneDX's form, each package with its version and what it needs itself."""
    from cyclonedx.model.bom import Bom

    def sbom() -> str:
        ran = subprocess.run(
            [sys.executable, ROOT / "scripts/sbom.py", "-"],
            capture_output=True,
            text=True,
            timeout=patience.longest(60),
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    text = sbom()
    assert text == sbom()  # it can be compared with the one before
    document = json.loads(text)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    listed = {part["name"]: part["version"] for part in document["components"]}
    assert listed == {name: version for name, (version, _) in pinned("extras.txt").items()}
    scopes = {part["name"] for part in document["components"] if part["scope"] == "required"}
    assert scopes == set(pinned("run.txt"))
    needs = {
        entry["ref"].partition("@")[0]: entry["dependsOn"] for entry in document["dependencies"]
    }
    assert f"pkg:pypi/cryptography@{listed['cryptography']}" in needs["pkg:pypi/jobqueue"]
    assert f"pkg:pypi/starlette@{listed['starlette']}" in needs["pkg:pypi/fastapi"]
    read = Bom.from_json(document)  # type: ignore[attr-defined]  # a decorator adds it
    assert len(read.components) == len(listed)
