"""Writes the SBOM: which packages jobqueue needs, as CycloneDX 1.6 (JSON).

    make sbom             dist/jobqueue-VERSION.cdx.json
    make sbom ARGS=-      to standard output

The packages and versions are those of pins/extras.txt (required: pins/run.txt, the others are
optional), licences and dependencies those that the packages in .venv say. The same input gives the
same file.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
NAME = "jobqueue"
FOR_DEVELOPERS = {"dev", "bench"}


def main() -> int:
    document = bom()
    text = json.dumps(document, indent=2) + "\n"
    if sys.argv[1:] == ["-"]:
        sys.stdout.write(text)
        return 0
    if sys.argv[1:]:
        print(__doc__, file=sys.stderr)
        return 2
    file = ROOT / "dist" / f"{NAME}-{document['metadata']['component']['version']}.cdx.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    print(f"{file.relative_to(ROOT)}: {len(document['components'])} packages")
    return 0


def bom() -> dict[str, Any]:
    pinned, required = pins("extras.txt"), pins("run.txt")
    ours = metadata.distribution(NAME)
    references = {name: f"pkg:pypi/{name}@{version}" for name, version in pinned.items()}
    components = [
        component(name, version, references[name])
        | {"scope": "required" if name in required else "optional"}
        for name, version in pinned.items()
    ]
    own = f"pkg:pypi/{NAME}@{ours.version}"
    dependencies = [
        {"ref": own, "dependsOn": needs(ours, references)},
        *(
            {"ref": reference, "dependsOn": needs(found, references) if found else []}
            for name, reference in references.items()
            for found in [installed(name)]
        ),
    ]
    identity = json.dumps([own, components, dependencies])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, identity)}",
        "version": 1,
        "metadata": {"component": component(NAME, ours.version, own)},
        "components": components,
        "dependencies": dependencies,
    }


def pins(name: str) -> dict[str, str]:
    """Package -> version."""
    text = (ROOT / "pins" / name).read_text()
    return dict(re.findall(r"^([a-z0-9-]+)(?:\[[a-z0-9,-]+\])?==([^\s;\\]+)", text, re.MULTILINE))


def component(name: str, version: str, reference: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": reference,
        "name": name,
        "version": version,
        "purl": reference,
    }
    found = installed(name)
    if found is None:
        return made  # needed on another platform only
    if found.version != version:
        raise SystemExit(
            f"sbom: {name} {found.version} is installed, {version} is pinned: make setup"
        )
    if expressions := said(found, "License-Expression"):
        made["licenses"] = [{"expression": each} for each in expressions]
        return made
    classes = [line for line in said(found, "Classifier") if line.startswith("License")]
    names = [line.rpartition(" :: ")[2] for line in classes]
    # Some have their whole text in this field.
    names = names or [text for text in said(found, "License") if "\n" not in text]
    if names:
        made["licenses"] = [{"license": {"name": each}} for each in names]
    return made


def said(found: metadata.Distribution, field: str) -> list[str]:
    """What a package says of itself under this name."""
    return found.metadata.get_all(field) or []


def installed(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def needs(found: metadata.Distribution, references: dict[str, str]) -> list[str]:
    """What a package needs, among those that are listed."""
    names = set()
    for line in found.requires or []:
        asked = Requirement(line)
        if asked.marker is not None and "extra" in str(asked.marker):
            # Of our own extras all are listed; of others', those that somebody asked for.
            extra = re.search(r"extra == ['\"]([\w-]+)['\"]", str(asked.marker))
            if found.name != NAME or extra is None or extra[1] in FOR_DEVELOPERS:
                continue
        names.add(canonicalize_name(asked.name))
    return sorted(references[name] for name in names if name in references)


if __name__ == "__main__":
    sys.exit(main())
