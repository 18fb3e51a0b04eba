"""What an API server would refuse of a manifest, by the OpenAPI schemas of a Kubernetes version.

The schemas are those of `kubernetes_validate --strict` (unknown fields are errors), each read once:
its own `validate` reads a version's definitions again for every manifest. Kinds of other projects
are held against the structures in `tests.integration.kube.crds` and below.
"""

import functools
from typing import Any, Final

import pytest

from tests.integration.chart.rendering import Manifest
from tests.integration.kube import crds

VERSIONS: Final = ("1.30", "1.33", "1.37")
"""The oldest Kubernetes version that the chart is for, that of Chart.yaml, the least that some
example needs, and the newest: a field that two of them have was not missing between them.
"""
_ENDPOINT: Final[Manifest] = {
    "type": "object",
    "required": ["port"],
    "additionalProperties": False,
    "properties": {
        "port": crds.LABEL,
        "path": {"type": "string"},
        "scheme": {"enum": ["http", "https"]},
        "interval": {
            "type": "string",
            "pattern": r"^[0-9]+(ms|s|m|h)$",
        },
        "relabelings": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "sourceLabels": {
                        "type": "array",
                        "items": {"type": "string", "pattern": r"^[a-zA-Z_][a-zA-Z0-9_]*$"},
                    },
                    "targetLabel": {"type": "string"},
                    "regex": {"type": "string"},
                    "replacement": {"type": "string"},
                    "action": {"type": "string"},
                },
            },
        },
    },
}
_WORDS: Final = {"type": "object", "additionalProperties": {"type": "string"}}
OTHERS: Final[dict[str, Manifest]] = {
    "PodMonitor": {
        "type": "object",
        "required": ["selector", "podMetricsEndpoints"],
        "additionalProperties": False,
        "properties": {
            "selector": {"type": "object"},
            "podMetricsEndpoints": {"type": "array", "items": _ENDPOINT},
        },
    },
    "ServiceMonitor": {
        "type": "object",
        "required": ["selector", "endpoints"],
        "additionalProperties": False,
        "properties": {
            "selector": {"type": "object"},
            "jobLabel": {"type": "string"},
            "endpoints": {"type": "array", "items": _ENDPOINT},
        },
    },
    "PrometheusRule": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "groups": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name", "rules"],
                    "additionalProperties": False,
                    "properties": {
                        "name": {"type": "string", "minLength": 1},
                        "interval": {"type": "string"},
                        "rules": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "required": ["expr"],
                                "additionalProperties": False,
                                "properties": {
                                    "alert": {"type": "string"},
                                    "record": {"type": "string"},
                                    "expr": {"type": "string"},
                                    "for": {"type": "string"},
                                    "labels": _WORDS,
                                    "annotations": _WORDS,
                                },
                            },
                        },
                    },
                },
            }
        },
    },
    "Certificate": {
        "type": "object",
        "required": ["issuerRef", "secretName"],
        "additionalProperties": False,
        "properties": {
            "secretName": crds.NAME,
            "duration": {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(h|m|s))+$"},
            "dnsNames": {"type": "array", "items": crds.NAME, "minItems": 1, "uniqueItems": True},
            "usages": {
                "type": "array",
                "items": {"enum": ["digital signature", "key encipherment", "server auth"]},
            },
            "privateKey": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "algorithm": {"enum": ["RSA", "ECDSA", "Ed25519"]},
                    "size": {"type": "integer"},
                    "rotationPolicy": {"enum": ["Never", "Always"]},
                },
            },
            "issuerRef": {
                "type": "object",
                "required": ["name"],
                "additionalProperties": False,
                "properties": {
                    "name": crds.NAME,
                    "kind": {"enum": ["Issuer", "ClusterIssuer"]},
                    "group": {"const": "cert-manager.io"},
                },
            },
        },
    },
    "LeaderWorkerSet": {
        "type": "object",
        "required": ["leaderWorkerTemplate"],
        "additionalProperties": False,
        "properties": {
            "replicas": {"type": "integer", "minimum": 0},
            "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
            "rolloutStrategy": {
                "type": "object",
                "required": ["type"],
                "additionalProperties": False,
                "properties": {
                    "type": {"const": "RollingUpdate"},
                    "rollingUpdateConfiguration": {"type": "object"},
                },
            },
            "leaderWorkerTemplate": {
                "type": "object",
                "required": ["workerTemplate"],
                "additionalProperties": False,
                "properties": {
                    "size": {"type": "integer", "minimum": 1},
                    "restartPolicy": {
                        "enum": ["RecreateGroupOnPodRestart", "None", "RecreateGroupAfterStart"]
                    },
                    "leaderTemplate": {"type": "object"},
                    "workerTemplate": {"type": "object"},
                },
            },
        },
    },
}
"""`spec` of kinds of other projects, as far as the chart uses them. Source: the CustomResource
definitions of prometheus-operator (6adcebc5), cert-manager (2d0d7f7f) and lws (060ab4d), 2026-08.
"""
_APIS: Final = {
    "PodMonitor": "monitoring.coreos.com/v1",
    "ServiceMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "Certificate": "cert-manager.io/v1",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
}


def refusals(manifest: Manifest, version: str) -> list[str]:
    """Return what is wrong with a manifest, a line each with its place."""
    kind = manifest["kind"]
    if kind in OTHERS:
        wrong = [] if manifest["apiVersion"] == _APIS[kind] else [f"{kind}: no such apiVersion"]
        wrong += _lines(_plain(kind), manifest["spec"])
        if kind == "LeaderWorkerSet":
            both = manifest["spec"]["leaderWorkerTemplate"]
            for role in ("leaderTemplate", "workerTemplate"):
                pod = {"apiVersion": "v1", "kind": "Pod", **both.get(role, {"spec": None})}
                wrong += [f"{role}: {line}" for line in refusals(pod, version)]
        return wrong
    if (manifest["apiVersion"], kind) in crds.SCHEMAS:
        return crds.misfits(manifest)
    return _lines(_validator(version, kind.lower(), manifest["apiVersion"]), manifest)


def _lines(validator: Any, value: object) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


@functools.cache
def _plain(kind: str) -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    return jsonschema.Draft202012Validator(OTHERS[kind])


@functools.cache
def _validator(version: str, kind: str, api: str) -> Any:
    utils = pytest.importorskip("kubernetes_validate.utils")
    group, _, number = api.rpartition("/")
    prefix = f"{group.partition('.')[0]}-" if group else ""
    schema = utils.schema_contents(f"{_folder(version)}/{kind}-{prefix}{number}.json", version)
    return utils.jsonschema.validators.Draft202012Validator(schema, registry=_registry(version))


@functools.cache
def _registry(version: str) -> Any:
    utils = pytest.importorskip("kubernetes_validate.utils")
    contents = utils.schema_contents(f"{_folder(version)}/_definitions.json", version)
    return utils.Resource.from_contents(contents) @ utils.Registry()


def _folder(version: str) -> str:
    return f"kubernetes-json-schema/v{version}.0-local-strict"
