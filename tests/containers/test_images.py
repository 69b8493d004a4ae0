"""What the images are, before anything runs in them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from jobqueue import __version__
from tests.containers.engine_images import docker

SMALL = ("server", "worker", "taskqueue")
ALL = (*SMALL, "bench")
# Run in an image: prints what must not be there.
_LEFT_BEHIND = """
import pathlib
inside = pathlib.Path("/opt/jobqueue")
names = {"tests", "test", "__pycache__"}
print([str(path) for path in inside.rglob("*") if path.suffix == ".pyc" or path.name in names])
"""


def inspect(engine: str, image: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = json.loads(docker(engine, "inspect", f"jobqueue-{image}:latest"))
    return found[0]["Config"]


def run_python(engine: str, image: str, code: str) -> str:
    """With nothing but what the image holds."""
    alone = ["run", "--rm", "--network", "none", "--read-only", "--entrypoint", "python"]
    return docker(engine, *alone, f"jobqueue-{image}:latest", "-c", code)


@pytest.mark.req("jq:NFR-018")
def test_images_are_smaller_than_200_mb(images: str) -> None:
    sizes = {
        name: float(size)
        for name, size in re.findall(r"^jobqueue-(\w+): ([\d.]+) MB", images, re.M)
    }
    assert sizes.keys() == set(ALL)
    assert all(sizes[image] < 200 for image in SMALL), sizes


@pytest.mark.req("jq:FR-049", "tq:COMPOSE")
@pytest.mark.parametrize("image", ALL)
@pytest.mark.usefixtures("images")
def test_an_image_is_nobodys_and_says_what_it_is(engine: str, image: str) -> None:
    told = inspect(engine, image)
    assert told["User"] == "10001:10001"
    labels = told["Labels"]
    assert labels["org.opencontainers.image.title"] == f"jobqueue-{image}"
    assert labels["org.opencontainers.image.version"] == __version__
    assert re.fullmatch(r"[0-9a-f]{40}", labels["org.opencontainers.image.revision"])
    # No shell between the engine and the program: signals reach it.
    assert told["Entrypoint"][0] in ("jq-server", "jq-worker", "jq-service", "jq-bench")
    assert told["Healthcheck"]["Test"][0] == ("NONE" if image == "bench" else "CMD")


@pytest.mark.parametrize("image", SMALL)
@pytest.mark.usefixtures("images")
def test_an_image_holds_neither_tests_nor_compiled_files(engine: str, image: str) -> None:
    assert run_python(engine, image, _LEFT_BEHIND) == "[]"


@pytest.mark.parametrize(
    ("image", "absent"),
    [
        ("server", {"matplotlib", "numpy", "pytest"}),
        ("worker", {"matplotlib", "fastapi", "starlette", "uvicorn", "cryptography"}),
        ("taskqueue", {"matplotlib", "fastapi", "asyncpg", "redis", "confluent_kafka"}),
    ],
)
@pytest.mark.usefixtures("images")
def test_an_image_holds_no_packages_of_others(engine: str, image: str, absent: set[str]) -> None:
    look = f"print([name for name in {sorted(absent)} if find_spec(name)])"
    code = f"from importlib.util import find_spec; {look}"
    assert run_python(engine, image, code) == "[]"


@pytest.mark.parametrize(
    ("image", "program"),
    [
        *(("server", name) for name in ("jq-server", "jq-ctl")),
        *(("worker", name) for name in ("jq-worker", "jq-ctl")),
        ("taskqueue", "jq-service"),
        ("bench", "jq-bench"),
    ],
)
@pytest.mark.usefixtures("images")
def test_the_programs_of_an_image_start(engine: str, image: str, program: str) -> None:
    alone = ["run", "--rm", "--network", "none", "--read-only", "--entrypoint", program]
    name = f"jobqueue-{image}:latest"
    revision = inspect(engine, image)["Labels"]["org.opencontainers.image.revision"]
    assert docker(engine, *alone, name, "--version") == (
        f"jobqueue {__version__} (commit {revision[:7]})"
    )
    assert "Usage:" in docker(engine, *alone, name, "--help")


@pytest.mark.usefixtures("images")
def test_a_server_that_everybody_might_call_does_not_start(engine: str) -> None:
    with pytest.raises(AssertionError, match=r"http\.host: 0\.0\.0\.0 is open to the network"):
        docker(engine, "run", "--rm", "--network", "none", "jobqueue-server:latest")
