"""What kustomize builds of deploy/kubernetes, and parts of it."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import patience

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
DEPLOYMENT = ROOT / "docs/deployment.md"

WORKLOADS = ("StatefulSet", "Deployment", "Job")

Object = dict[str, Any]
Objects = dict[tuple[str, str], Object]  # by kind and name


def kustomize() -> list[str]:
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    if shutil.which("kubectl"):
        return ["kubectl", "kustomize"]
    pytest.skip("neither kustomize nor kubectl is here: nothing builds the overlays")


@functools.cache
def built_text(overlay: str) -> str:
    done = subprocess.run(
        [*kustomize(), str(KUBERNETES / "overlays" / overlay)],
        capture_output=True,
        text=True,
        timeout=patience.longest(60),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # nothing deprecated
    return done.stdout


def by_name(documents: Iterable[Object]) -> Objects:
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


def pod_specs(objects: Objects) -> dict[str, Object]:
    return {
        name: one["spec"]["template"]["spec"]
        for (kind, name), one in objects.items()
        if kind in WORKLOADS
    }


def container(objects: Objects, name: str) -> Object:
    (only,) = pod_specs(objects)[name]["containers"]
    return dict(only)


def example() -> Objects:
    """The overlay that people copy."""
    return by_name(yaml.safe_load_all(built_text("example")))
