"""What the definitions of a gateway's kinds admit, as JSON schemas: their structure, without words.

Source: config/crd/bases/inference.networking.k8s.io_inferencepools.yaml of
kubernetes-sigs/gateway-api-inference-extension (84436a96), config/crd/bases/
llm-d.ai_inferenceobjectives.yaml of llm-d/llm-d-router (ebab6879), HTTPRoute v1 of
kubernetes-sigs/gateway-api as far as it is used here, keda.sh_scaledobjects.yaml of kedacore/keda
with the metadata of its prometheus_scaler.go. Fields that are not named are refused, as by
`kubectl apply --validate=strict`. Rules in CEL are not among them, but for unique ports.
"""

from typing import Any, Final

Schema = dict[str, Any]

_DNS: Final = r"^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_DURATION: Final = r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"


def _fields(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _list(items: Schema, least: int = 0, most: int = 16) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _text(pattern: str = "", least: int = 1, most: int = 253) -> Schema:
    text: Schema = {"type": "string", "minLength": least, "maxLength": most}
    return {**text, "pattern": pattern} if pattern else text


GROUP: Final = _text(_DNS, 0)
KIND: Final = _text(r"^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$", 1, 63)
NAME: Final = _text()
NAMESPACE: Final = _text(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", 1, 63)
PORT: Final = {"type": "integer", "minimum": 1, "maximum": 65535}
LABEL: Final = _text(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$", 0, 63)
INT32: Final = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
METADATA: Final = {"type": "object", "properties": {"name": NAME}, "required": ["name"]}


def _kind(name: str, api: str, spec: Schema, status: Schema | None = None) -> Schema:
    return _fields(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": api},
        kind={"const": name},
        metadata=METADATA,
        spec=spec,
        status=status or {"type": "object"},
    )


POOL: Final = _kind(
    "InferencePool",
    "inference.networking.k8s.io/v1",
    _fields(
        ("selector", "targetPorts"),
        selector=_fields(
            ("matchLabels",),
            matchLabels={
                "type": "object",
                "additionalProperties": LABEL,
                "minProperties": 1,
                "maxProperties": 64,
            },
        ),
        targetPorts={**_list(_fields(("number",), number=PORT), 1, 8), "uniqueItems": True},
        appProtocol={"enum": ["http", "kubernetes.io/h2c"]},
        endpointPickerRef=_fields(
            ("name", "port"),  # the port: by a rule, where the kind is Service
            group=GROUP,
            kind=KIND,
            name=NAME,
            port=_fields(("number",), number=PORT),
            failureMode={"enum": ["FailOpen", "FailClose"]},
        ),
    ),
)


def objective(api: str) -> Schema:
    """Return the schema of InferenceObjective, which two API groups have alike."""
    pool = _fields(("name",), group=GROUP, kind=KIND, name=NAME)
    return _kind("InferenceObjective", api, _fields(("poolRef",), poolRef=pool, priority=INT32))


_MATCH: Final = _fields(
    path=_fields(
        type={"enum": ["Exact", "PathPrefix", "RegularExpression"]}, value=_text(r"^/", 1, 1024)
    ),
    headers=_list(
        _fields(
            ("name", "value"),
            type={"enum": ["Exact", "RegularExpression"]},
            name=NAME,
            value=_text("", 1, 4096),
        )
    ),
    method={"enum": ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"]},
)
ROUTE: Final = _kind(
    "HTTPRoute",
    "gateway.networking.k8s.io/v1",
    _fields(
        parentRefs=_list(
            _fields(
                ("name",),
                group=GROUP,
                kind=KIND,
                name=NAME,
                namespace=NAMESPACE,
                sectionName=NAME,
                port=PORT,
            ),
            0,
            32,
        ),
        hostnames=_list(_text()),
        rules=_list(
            _fields(
                name=NAME,
                matches=_list(_MATCH, 0, 64),
                filters=_list({"type": "object"}),
                backendRefs=_list(
                    _fields(
                        ("name",),
                        group=GROUP,
                        kind=KIND,
                        name=NAME,
                        namespace=NAMESPACE,
                        port=PORT,
                        weight={"type": "integer", "minimum": 0, "maximum": 1_000_000},
                        filters=_list({"type": "object"}),
                    )
                ),
                timeouts=_fields(request=_text(_DURATION), backendRequest=_text(_DURATION)),
            )
        ),
    ),
)
_LISTENER: Final = _fields(
    ("name", "port", "protocol"),
    name=NAME,
    hostname=NAME,
    port=PORT,
    protocol=_text("", 1, 255),
    tls={"type": "object"},
    allowedRoutes={"type": "object"},
)
GATEWAY: Final = _kind(
    "Gateway",
    "gateway.networking.k8s.io/v1",
    _fields(
        ("gatewayClassName", "listeners"),
        gatewayClassName=NAME,
        listeners=_list(_LISTENER, 1, 64),
    ),
)

COUNT: Final = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_RULES: Final = _fields(
    stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
    selectPolicy={"enum": ["Max", "Min", "Disabled"]},
    policies=_list(
        _fields(
            ("periodSeconds", "type", "value"),
            periodSeconds={"type": "integer", "minimum": 1, "maximum": 1800},
            type={"enum": ["Pods", "Percent"]},
            value=COUNT,
        )
    ),
)
_NUMBER: Final = _text(r"^[0-9]+(\.[0-9]+)?$", 1, 32)
_PROMETHEUS: Final = _fields(
    ("metadata", "type"),
    type={"const": "prometheus"},
    name=NAME,
    metricType={"enum": ["AverageValue", "Value"]},
    metadata=_fields(
        ("serverAddress", "query", "threshold"),
        serverAddress=_text(r"^https?://", 1, 1024),
        query=_text("", 1, 4096),
        threshold=_NUMBER,
        activationThreshold=_NUMBER,
        ignoreNullValues={"enum": ["true", "false"]},
    ),
)
_CPU: Final = _fields(
    ("metadata", "metricType", "type"),
    type={"const": "cpu"},
    name=NAME,
    metricType={"enum": ["AverageValue", "Utilization"]},
    metadata=_fields(("value",), value=_NUMBER, containerName=NAME),
)
SCALED_OBJECT: Final = _kind(
    "ScaledObject",
    "keda.sh/v1alpha1",
    _fields(
        ("scaleTargetRef", "triggers"),
        scaleTargetRef=_fields(("name",), apiVersion=_text(), kind=KIND, name=NAME),
        pollingInterval=COUNT,
        cooldownPeriod=COUNT,
        minReplicaCount=COUNT,
        maxReplicaCount=COUNT,
        fallback=_fields(("failureThreshold", "replicas"), failureThreshold=COUNT, replicas=COUNT),
        advanced=_fields(
            horizontalPodAutoscalerConfig=_fields(
                name=NAME, behavior=_fields(scaleUp=_RULES, scaleDown=_RULES)
            ),
            restoreToOriginalReplicaCount={"type": "boolean"},
        ),
        triggers=_list({"oneOf": [_PROMETHEUS, _CPU]}, 1),
    ),
)

_OBJECTIVE_APIS: Final = ("llm-d.ai/v1alpha2", "inference.networking.x-k8s.io/v1alpha2")
SCHEMAS: Final[dict[tuple[str, str], Schema]] = {
    ("inference.networking.k8s.io/v1", "InferencePool"): POOL,
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): ROUTE,
    ("gateway.networking.k8s.io/v1", "Gateway"): GATEWAY,
    ("keda.sh/v1alpha1", "ScaledObject"): SCALED_OBJECT,
    **{(api, "InferenceObjective"): objective(api) for api in _OBJECTIVE_APIS},
}


def misfits(one: dict[str, Any]) -> list[str]:
    """Return what its definition refuses of an object, each with its place. Raises `KeyError` for
    a kind that has none here.
    """
    import jsonschema  # noqa: PLC0415  it comes with kubernetes_validate, which may be missing

    schema = SCHEMAS[one["apiVersion"], one["kind"]]
    found = jsonschema.Draft202012Validator(schema).iter_errors(one)
    return [f"{error.json_path}: {error.message}" for error in found]
