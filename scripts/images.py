"""Builds the container images, and says where each megabyte of them goes.

    make images                     all of them, as jobqueue-NAME:VERSION and jobqueue-NAME:latest
    make images ARGS="server"       some of them
    make images ARGS=--sizes        only the table

The packages are fetched once into build/wheelhouse, each with the hash that pins/*.txt name;
--wheels keeps them for other checkouts, too. The build itself has no network. It takes an engine
that `docker` talks to (DOCKER_HOST).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WHEELHOUSE = ROOT / "build" / "wheelhouse"
IMAGES = ("server", "worker", "taskqueue", "bench")
LISTS = ("build.txt", "bench.txt")  # the others hold some of the same
PYTHON = "3.11"
BASE = "python:3.11-slim"
BASE_MB = 125  # what the public base has; another one, built by hand, may have more
MOST_MB = 200  # jq:NFR-018; the benchmarks' image may be larger
TAIL = 30  # lines of a build that failed
LARGEST = 12  # packages that the table names

# In the image: what each package takes, in bytes. Packages lie at the first level.
_WEIGH = """
import json, os, sysconfig
found = {}
for top in os.scandir(sysconfig.get_path("purelib")):
    inside = [top.path] if top.is_file() else [
        os.path.join(where, name) for where, _, names in os.walk(top.path) for name in names]
    name = top.name.removesuffix(".libs").partition(".")[0].partition("-")[0]
    found[name] = found.get(name, 0) + sum(os.lstat(path).st_size for path in inside)
print(json.dumps(found))
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images", nargs="*", metavar="IMAGE", help=", ".join(IMAGES))
    parser.add_argument("--sizes", action="store_true", help="build nothing")
    parser.add_argument(
        "--wheels",
        type=Path,
        metavar="FOLDER",
        help="packages that are there are not fetched, and the others are kept there",
    )
    args = parser.parse_args()
    if unknown := set(args.images) - set(IMAGES):
        parser.error(f"unknown image {', '.join(sorted(unknown))}; known: {', '.join(IMAGES)}")
    images = args.images or list(IMAGES)
    try:
        if not args.sizes:
            collect(args.wheels)
            for image in images:
                build(image)
        return report(images)
    except subprocess.CalledProcessError as failed:
        print(f"images: {' '.join(map(str, failed.cmd))}: failed", file=sys.stderr)
        return 1


def collect(kept: Path | None) -> None:
    """Fill the wheelhouse. Where it or the other folder is complete, no index is asked."""
    sources = [folder for folder in (WHEELHOUSE, kept) if folder]
    for folder in sources:
        folder.mkdir(parents=True, exist_ok=True)
    for name in LISTS:
        # pip judges conditions by the Python that runs it, and the image's may be another one.
        whole = re.sub(r" ; [^\\\n]*", "", (ROOT / "pins" / name).read_text())
        wanted = WHEELHOUSE.with_name(name)
        wanted.write_text(whole)
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--require-hashes", "--no-deps", "--only-binary", ":all:"),
            *("--python-version", PYTHON, "--dest", str(WHEELHOUSE)),
            *(word for folder in sources for word in ("--find-links", str(folder))),
            *("-r", str(wanted)),
        ]
        if subprocess.run([*command, "--no-index"], capture_output=True, check=False).returncode:
            print(f"fetching the packages of pins/{name}", flush=True)
            subprocess.run(command, check=True)
    if kept:
        keep(kept)


def keep(folder: Path) -> None:
    """Copy what it lacks. A copy that is interrupted leaves no half."""
    for wheel in WHEELHOUSE.glob("*.whl"):
        if not (folder / wheel.name).exists():
            scratch = folder / f"{wheel.name}.{os.getpid()}.new"
            shutil.copyfile(wheel, scratch)
            scratch.replace(folder / wheel.name)


def build(image: str) -> None:
    version, commit = version_and_commit()
    told = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "/wheelhouse",
        "JQ_VERSION": version,
        "JQ_COMMIT": commit,
    }
    arguments = [option for pair in told.items() for option in ("--build-arg", "=".join(pair))]
    tags = [f"jobqueue-{image}:{version}", f"jobqueue-{image}:latest"]
    command = ["docker", "build", "--network", "none", "--target", image, *arguments]
    print(f"building {tags[0]}", flush=True)
    command += [option for tag in tags for option in ("--tag", tag)]
    done = subprocess.run(
        [*command, "."],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        print("\n".join(done.stdout.splitlines()[-TAIL:]), file=sys.stderr)
        raise subprocess.CalledProcessError(done.returncode, command)


def version_and_commit() -> tuple[str, str]:
    text = (ROOT / "src/jobqueue/_version.py").read_text()
    found = re.search(r'__version__ = "([^"]+)"', text)
    assert found is not None
    commit = os.environ.get("JQ_COMMIT") or said("git", "-C", str(ROOT), "rev-parse", "HEAD")
    return found[1], commit


def said(*command: str) -> str:
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def size(image: str) -> int:
    return int(said("docker", "image", "inspect", "--format", "{{.Size}}", image))


def report(images: list[str]) -> int:
    """The table. 1: an image is larger than it may be."""
    base = size(BASE)
    print(f"base used: {BASE}, {base / 1e6:.1f} MB; counted as {BASE_MB} MB (the public one)\n")
    heavy = []
    for image in images:
        above = size(f"jobqueue-{image}:latest") - base
        counted = BASE_MB + above / 1e6
        bound = "" if image == "bench" else f" (less than {MOST_MB} allowed)"
        print(
            f"jobqueue-{image}: {counted:.1f} MB{bound}, of these {above / 1e6:.1f} MB our layers"
        )
        inside = weigh(f"jobqueue-{image}:latest")
        largest = sorted(inside.items(), key=lambda item: -item[1])
        for name, taken in largest[:LARGEST]:
            print(f"  {taken / 1e6:7.1f} MB  {name}")
        rest = sum(taken for _, taken in largest[LARGEST:])
        print(f"  {rest / 1e6:7.1f} MB  {max(0, len(largest) - LARGEST)} others\n")
        if bound and counted >= MOST_MB:
            heavy.append(image)
    if heavy:
        print(f"images: too large: {', '.join(heavy)}", file=sys.stderr)
    return 1 if heavy else 0


def weigh(image: str) -> dict[str, int]:
    run = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "python"]
    found: dict[str, int] = json.loads(said(*run, image, "-c", _WEIGH))
    return found


if __name__ == "__main__":
    sys.exit(main())
