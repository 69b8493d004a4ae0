"""What is built knows its commit, and the README says how to install it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests import patience

ROOT = Path(__file__).parent.parent
FILES = [".gitignore", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project as it is built, but small."""
    made = tmp_path / "project"
    (made / "src/jobqueue").mkdir(parents=True)
    for name in [*FILES, "src/jobqueue/__init__.py", "src/jobqueue/_version.py"]:
        (made / name).write_bytes((ROOT / name).read_bytes())
    return made


def build(project: Path, target: str, out: Path, **extra: str) -> Path:
    """Build a wheel or an sdist, as pip would."""
    unwanted = ("JQ_", "GIT_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    built = subprocess.run(
        command,
        cwd=project,
        env=env | extra,
        capture_output=True,
        text=True,
        timeout=patience.longest(60),
    )
    assert built.returncode == 0, built.stderr
    [found] = out.iterdir()
    return found


def commit_in(wheel: Path) -> str | None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith("_commit.txt")]
        assert names in ([], ["jobqueue/_commit.txt"])
        return archive.read(names[0]).decode() if names else None


def git(project: Path, *args: str) -> str:
    who = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(project), *who, *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.req("jq:NFR-017")
def test_a_wheel_holds_the_commit_of_its_checkout(project, tmp_path):
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-qm", "first")
    head = git(project, "rev-parse", "HEAD")
    assert commit_in(build(project, "wheel", tmp_path / "out")) == f"{head}\n"
    assert git(project, "status", "--porcelain") == ""  # nothing that would soon be wrong is left


def test_a_wheel_takes_the_commit_from_the_environment(project, tmp_path):
    assert commit_in(build(project, "wheel", tmp_path / "out", JQ_COMMIT=COMMIT)) == f"{COMMIT}\n"


def test_a_wheel_made_of_an_sdist_keeps_the_commit(project, tmp_path):
    sdist = build(project, "sdist", tmp_path / "sdist", JQ_COMMIT=COMMIT)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    [unpacked] = (tmp_path / "unpacked").iterdir()
    assert commit_in(build(unpacked, "wheel", tmp_path / "out")) == f"{COMMIT}\n"


@pytest.mark.req("jq:NFR-017")
def test_without_git_the_commit_is_unknown(project, tmp_path):
    git(tmp_path, "init", "-q")  # another project's checkout, around this one
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "other")
    assert commit_in(build(project, "wheel", tmp_path / "out")) is None
    assert commit_in(build(project, "wheel", tmp_path / "out2", PATH="/nowhere")) is None


def test_the_readme_says_first_how_to_install_it_and_explains_every_extra():
    readme = (ROOT / "README.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"]) - {"dev", "bench"}
    first = re.search(r'`pip install "jobqueue\[(.+?)\]"`', readme[: readme.index("```python")])
    assert first is not None
    assert set(first[1].split(",")) == extras
    assert set(re.findall(r"^\| `jobqueue\[(\w+)\]` \|", readme, re.MULTILINE)) == extras
