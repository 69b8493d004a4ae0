"""Makes schemas.json of the published schemas: only our kinds, without descriptions.

    python -m tests.kubernetes.trim_schemas STRICT-FOLDER CRD.yaml ...

STRICT-FOLDER is that of a version of Kubernetes in the package kubernetes-validate (PyPI), such as
kubernetes-json-schema/v1.33.0-local-strict, which holds what Kubernetes publishes as OpenAPI; the
whole package has 70 MB. The CRDs are those of a release of prometheus-operator.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

SCHEMAS = Path(__file__).with_name("schemas.json")
KINDS = {  # apiVersion and kind, as the file of its schema is called
    "apps/v1 Deployment": "deployment-apps-v1",
    "apps/v1 StatefulSet": "statefulset-apps-v1",
    "batch/v1 Job": "job-batch-v1",
    "v1 Service": "service-v1",
    "v1 ServiceAccount": "serviceaccount-v1",
    "v1 ConfigMap": "configmap-v1",
    "v1 Namespace": "namespace-v1",
    "policy/v1 PodDisruptionBudget": "poddisruptionbudget-policy-v1",
    "autoscaling/v2 HorizontalPodAutoscaler": "horizontalpodautoscaler-autoscaling-v2",
    "networking.k8s.io/v1 NetworkPolicy": "networkpolicy-networking-v1",
}
_REF = "#/$defs/"


def trimmed(node: Any) -> Any:
    """Without what is for people, and with references inside of one file."""
    if isinstance(node, list):
        return [trimmed(one) for one in node]
    if not isinstance(node, dict):
        return node
    kept = {}
    for name, value in node.items():
        if name == "properties":
            kept[name] = {field: trimmed(schema) for field, schema in value.items()}
        elif name == "$ref":
            kept[name] = _REF + value.rpartition(_REF)[2]
        elif name != "description" and not name.startswith("x-kubernetes-"):
            kept[name] = trimmed(value)
    return kept


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(ref := node.get("$ref"), str):
            yield ref.removeprefix(_REF)
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for one in node:
            yield from references(one)


def closed(node: Any) -> Any:
    """A CRD's schema, in which a field that it does not know is an error."""
    if isinstance(node, dict):
        if "properties" in node and "additionalProperties" not in node:
            node = {**node, "additionalProperties": False}
        return {name: closed(value) for name, value in node.items()}
    return node


def custom(path: Path) -> tuple[str, Any]:
    crd = yaml.safe_load(path.read_text())["spec"]
    (version,) = crd["versions"]
    schema = closed(trimmed(version["schema"]["openAPIV3Schema"]))
    schema["properties"]["metadata"] = {"type": "object"}
    return f"{crd['group']}/{version['name']} {crd['names']['kind']}", schema


def main(folder: Path, *crds: Path) -> None:
    known = json.loads((folder / "_definitions.json").read_text())["$defs"]
    kinds = {
        kind: trimmed(json.loads((folder / f"{name}.json").read_text()))
        for kind, name in KINDS.items()
    }
    definitions: dict[str, Any] = {}
    wanted = list(references(kinds))
    while wanted:
        name = wanted.pop()
        if name not in definitions:
            definitions[name] = trimmed(known[name])
            wanted += references(definitions[name])
    kinds |= dict(map(custom, crds))
    document = {"kinds": kinds, "$defs": definitions}
    SCHEMAS.write_text(json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
