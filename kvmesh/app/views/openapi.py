"""The OpenAPI document of what kvmesh answers itself, and of inference as it comes in and goes out.

What engines alone know of, their bodies and their other paths, is theirs to describe.
`docs/reference/openapi.json` is what `kvmesh config openapi` prints and `GET /openapi.json` is.
"""

import re
from functools import lru_cache
from typing import Final, Literal

import msgspec

from kvmesh.app.front.browser_login import SessionView
from kvmesh.app.front.drain_wish import DrainWish
from kvmesh.app.serve.admission import AdmissionView
from kvmesh.app.views.decision_view import DecisionDetail, DecisionRow
from kvmesh.app.views.other_names import BOOKS
from kvmesh.app.views.overview import Overview
from kvmesh.app.views.policy_view import PolicyView, PolicyWish
from kvmesh.app.views.programs_page import MeshPrograms, ProgramsView
from kvmesh.app.views.settings_page import SettingsView
from kvmesh.app.views.tenant_view import TenantDetail
from kvmesh.app.views.usage_page import UsageView
from kvmesh.core.admission.access import role_for
from kvmesh.core.admission.paths import ROWS
from kvmesh.core.chat.inference import Extension
from kvmesh.core.insight.explain import DecisionView, TenantChoice

_Json = dict[str, object]
_OBJECT = dict[str, msgspec.Raw]
_Method = Literal["get", "put", "post", "delete"]
_Who = Literal["router", "meta-router"]
_BOTH: Final[tuple[_Who, ...]] = ("router", "meta-router")
_ROUTER: Final[tuple[_Who, ...]] = ("router",)
_META: Final[tuple[_Who, ...]] = ("meta-router",)

_EVENTS: Final = "text/event-stream"
_HTML: Final = "text/html"
_TEXT: Final = "text/plain"
_LINES: Final = "application/jsonl"
_FORM: Final = "application/x-www-form-urlencoded"


class Alive(msgspec.Struct, frozen=True):
    """That the process lives."""

    status: Literal["alive"]


class Readiness(msgspec.Struct, frozen=True):
    """Whether requests may come, and why not; `warnings` make routing worse than it could be."""

    ready: bool
    reason: str
    warnings: list[str] = []


class EngineRow(msgspec.Struct, frozen=True):
    """A worker; `registered` by POST, so that DELETE forgets it."""

    id: str
    url: str
    models: list[str]
    is_healthy: bool
    why_not: str | None
    registered: bool


class Engines(msgspec.Struct, frozen=True):
    """The workers of a router."""

    workers: list[EngineRow]
    total: int


class NewEngine(msgspec.Struct, frozen=True):
    """An engine to send requests to."""

    url: str
    name: str = ""
    model: str = ""


class Accepted(msgspec.Struct, frozen=True):
    """A change of the workers that was taken."""

    status: Literal["accepted"]
    worker_id: str
    location: str


class Decisions(msgspec.Struct, frozen=True):
    """The newest requests, newest first."""

    decisions: list[DecisionRow]


class SeenOfRequest(msgspec.Struct, frozen=True):
    """What bucket rules see of a request; `family` is one for all turns of a chat."""

    bucket: str | None
    policy: str
    model: str
    prompt_chars: int
    family: str


class Model(msgspec.Struct, frozen=True):
    """A model that is served, with further fields as its engines report them."""

    id: str
    object: Literal["model"]


class Models(msgspec.Struct, frozen=True):
    """The models that are served."""

    object: Literal["list"]
    data: list[Model]


class Fault(msgspec.Struct, frozen=True):
    """What was wrong; `code` is a word for programs, `param` the field or header meant."""

    message: str
    type: str
    param: str | None
    code: str | None
    request_id: str | None = None


class Failure(msgspec.Struct, frozen=True):
    """An error, in OpenAI's shape."""

    error: Fault


class Asked(msgspec.Struct, frozen=True):
    """One parameter: of the query, or, where the path names it, of the path."""

    name: str
    text: str
    whole: bool = False


class Page(msgspec.Struct, frozen=True):
    """One operation. `answers` are types, or media types of what is no JSON; `statuses` those of a
    success, and of an answer that has its shape; `body` is what it takes.
    """

    method: _Method
    path: str
    tag: str
    text: str
    answers: tuple[object, ...]
    by: tuple[_Who, ...] = _BOTH
    asked: tuple[Asked, ...] = ()
    body: object = None
    statuses: tuple[int, ...] = (200,)


_LIMIT: Final = Asked("limit", "How many rows at most.", whole=True)
_PROMPT: Final = "What would be decided of a chat or completion; nothing is sent."
_ID: Final = "The request's id, of the header `x-request-id` of its answer."
_HERE: Final = "Not forwarded by meta-routers."

# fmt: off
PAGES: Final = (
    Page("get", "/health", "state", "Whether the process lives.", (Alive,)),
    Page("get", "/ready", "state", "Whether requests may come; 503 with the reason if not.",
         (Readiness,), asked=(Asked("workers", "`any`: the lack of a worker is no reason."),),
         statuses=(200, 503)),
    Page("get", "/metrics", "state", "Figures for Prometheus.", (_TEXT,),
         asked=(Asked("names", f"Also by the names of others: {', '.join(BOOKS)}."),)),
    Page("get", "/v1/status", "state", "What the process knows of itself and its workers: for "
         "people, its fields change with versions.", (_OBJECT,)),
    Page("get", "/v1/overview", "state", "What the dashboard shows.", (Overview,),
         asked=(Asked("since", "Traffic from this Unix second on.", whole=True),
                Asked("after", "Decisions behind this `cursor`.", whole=True), _LIMIT)),
    Page("get", "/v1/events", "state", "The same as it changes.", (_EVENTS,)),
    Page("get", "/openapi.json", "state", "This document.", (_OBJECT,)),
    Page("get", "/v1/usage", "state", "Who used what, of a whole mesh at a meta-router.",
         (UsageView,), asked=(Asked("by", "`tenant`, `key`, `model`, `session` or `program`."),
                              Asked("since", "`minute`, `hour`, `day`, a time ago, a Unix time."),
                              Asked("tenant", "One tenant's alone."), _LIMIT)),
    Page("get", "/v1/decisions", "why", "The newest requests.", (Decisions,),
         asked=(Asked("find", "Words, each a part of an id, a tenant's or a worker's name."),
                Asked("tenant", "One tenant's alone."), _LIMIT)),
    Page("get", "/v1/decisions/{request_id}", "why", "All that is known of one request.",
         (DecisionDetail, TenantDetail), asked=(Asked("request_id", _ID),)),
    Page("post", "/v1/route", "why", _PROMPT, (DecisionView, TenantChoice),
         body=_OBJECT),
    Page("post", "/v1/bucket", "why", "What bucket rules see of a chat or completion.",
         (SeenOfRequest,), by=_META, body=_OBJECT),
    Page("get", "/v1/programs", "why", "Agents whose requests follow each other, those that wait "
         "first; of a meta-router those of all buckets.", (ProgramsView, MeshPrograms),
         asked=(_LIMIT,)),
    Page("get", "/v1/models", "models", "The models served.", (Models,)),
    Page("get", "/v1/models/{model}", "models", "One of them.", (Model,),
         asked=(Asked("model", "Its name."),)),
    Page("get", "/v1/streams/{stream_id}", "inference", "The rest of a stream that its client "
         "named by `x-kvmesh-stream-id` and lost.", (_EVENTS,),
         asked=(Asked("stream_id", "The client's name for it."),
                Asked("after", "How many events the client has.", whole=True))),
    Page("get", "/workers", "workers", "The workers of a router.", (Engines,), by=_ROUTER),
    Page("post", "/workers", "workers", "Register an engine at a router that has workers of its "
         "own; others answer 501.", (Accepted,), by=_ROUTER, body=NewEngine, statuses=(202,)),
    Page("delete", "/workers", "workers", "Forget a registered engine.", (Accepted,), by=_ROUTER,
         asked=(Asked("url", "Where it is."),), statuses=(202,)),
    Page("delete", "/workers/{worker_id}", "workers", "Forget a registered engine.", (Accepted,),
         by=_ROUTER, asked=(Asked("worker_id", "Its name."),), statuses=(202,)),
    Page("get", "/admin/admission", "settings", f"Bounds of admission in force. {_HERE}",
         (AdmissionView,), by=_ROUTER),
    Page("put", "/admin/admission", "settings", f"Change any of them, in the bucket. {_HERE}",
         (AdmissionView,), by=_ROUTER, body=dict[str, int | float | str]),
    Page("get", "/admin/policy", "settings", f"Formula and weights in force. {_HERE}",
         (PolicyView,), by=_ROUTER),
    Page("put", "/admin/policy", "settings", f"Begin a change, or return from one. {_HERE}",
         (PolicyView,), by=_ROUTER, body=PolicyWish),
    Page("delete", "/admin/policy", "settings", f"Return from the last change. {_HERE}",
         (PolicyView,), by=_ROUTER),
    Page("get", "/admin/trace", "settings", "With `--auto-tune` the last requests in Mooncake's "
         f"format. {_HERE}", (_LINES,), by=_ROUTER),
    Page("get", "/admin/drain", "settings", f"The workers that drain. {_HERE}",
         (dict[str, list[str]],), by=_ROUTER),
    Page("post", "/admin/drain", "settings", "Give a worker nothing new, or use it again.",
         (DrainWish,), body=DrainWish, statuses=(202,)),
    Page("get", "/admin/settings", "settings", "What processes run with, without what is secret.",
         (SettingsView,)),
    Page("get", "/", "dashboard", "The dashboard.", (_HTML,)),
    Page("get", "/dashboard", "dashboard", "The dashboard.", (_HTML,)),
    Page("get", "/session", "dashboard", "Who looks, and whether keys are asked for.",
         (SessionView,)),
    Page("get", "/login", "dashboard", "With `--api-keys` the page that asks for a key.",
         (_HTML,)),
    Page("post", "/login", "dashboard", "Show a key: `key=…`, or as JSON; a cookie comes back.",
         (), body=dict[str, str], statuses=(204, 303)),
    Page("post", "/logout", "dashboard", "End the session.", (), statuses=(204, 303)),
)
# fmt: on

_SENT: Final = (
    ("x-kvmesh-bucket", "The bucket (meta-router)."),
    ("x-kvmesh-router-mode", "kv, round-robin, random, least-loaded, power-of-two or direct."),
    ("x-kvmesh-worker-id", "The one worker it may go to."),
    ("x-kvmesh-session", "The conversation that it is part of."),
    ("x-kvmesh-program", "The agent whose turn this is."),
    ("x-kvmesh-tenant", "Whose request it is, where no key says so."),
    ("x-kvmesh-slo-ttft-ms", "When the first token is due, ms."),
    ("x-kvmesh-stream-id", "A name by which the client may ask for the rest of the stream."),
)
_GIVEN: Final = (
    ("x-request-id", "The request's id."),
    ("x-kvmesh-worker", "The worker that served."),
    ("x-kvmesh-overlap-blocks", "Leading blocks of the prompt that it was believed to hold."),
    ("x-kvmesh-trust", "How far its overlaps are believed."),
    ("x-kvmesh-router", "The replica that decided."),
    ("x-kvmesh-attempts", "Workers asked, where that is more than one."),
)


@lru_cache(1)
def document() -> bytes:
    """Return the document, as JSON for people. The schemas are those of the answers' own types."""
    named = {
        kind
        for page in PAGES
        for kind in (*page.answers, page.body)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    }
    kinds = sorted({*named, Extension, Failure}, key=repr)
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, _Json]] = {}
    for page in PAGES:
        paths.setdefault(page.path, {})[page.method] = _operation(page)
    for row in ROWS:
        if row.owner == "prefix":
            paths.setdefault(row.path, {})["post"] = _inference(row.path)
    whole: _Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "kvmesh",
            "version": "1",
            "summary": "Routers and meta-routers.",
            "description": "What kvmesh answers itself. Bodies of inference, and all other paths, "
            "are the engines': docs/reference/paths.md says who answers which.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }
    return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"


def _operation(page: Page) -> _Json:
    made = _begun(page)
    if page.asked:
        made["parameters"] = [_parameter(one, page.path) for one in page.asked]
    if page.body is not None:
        media = {"application/json": {"schema": _schema(page.body)}}
        if page.path == "/login":
            media[_FORM] = media["application/json"]
        made["requestBody"] = {"required": True, "content": media}
    kinds = [kind for kind in page.answers if not isinstance(kind, str)]
    content: _Json = {kind: {} for kind in page.answers if isinstance(kind, str)}
    if kinds:
        schemas = [_schema(kind) for kind in kinds]
        whole = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        content["application/json"] = {"schema": whole}
    answer: _Json = {"description": page.text, **({"content": content} if content else {})}
    made["responses"] = {**{str(one): answer for one in page.statuses}, **_failed()}
    return made


def _inference(path: str) -> _Json:
    sent = "Sent to the worker where the prompt costs least."
    made = _begun(Page("post", path, "inference", sent, ()))
    text: _Json = {"type": "string"}
    made["parameters"] = [
        {"name": name, "in": "header", "description": about, "schema": text}
        for name, about in _SENT
    ]
    body: _Json = {
        "type": "object",
        "description": "The engine's, which gets it as it is.",
        "properties": {
            "model": text,
            "stream": {"type": "boolean"},
            "kvmesh": {"$ref": "#/components/schemas/Extension"},
        },
    }
    made["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    answer: _Json = {
        "description": "The engine's answer.",
        "headers": {name: {"description": about, "schema": text} for name, about in _GIVEN},
        "content": {"application/json": {"schema": {"type": "object"}}, _EVENTS: {}},
    }
    made["responses"] = {"200": answer, **_failed()}
    return made


def _begun(page: Page) -> _Json:
    role = role_for(page.path)
    keys: list[_Json] = [] if role is None else [{}, {"bearer": []}, {"key": []}]
    return {
        "operationId": "_".join((page.method, *re.findall(r"\w+", page.path))),
        "tags": [page.tag],
        "summary": page.text,
        "security": keys,
        "x-kvmesh-by": page.by,
        **({} if role is None else {"x-kvmesh-role": role}),
    }


def _parameter(one: Asked, path: str) -> _Json:
    in_path = f"{{{one.name}}}" in path
    kind: _Json = {"type": "integer", "minimum": 0} if one.whole else {"type": "string"}
    place = "path" if in_path else "query"
    found: _Json = {"name": one.name, "in": place, "description": one.text, "schema": kind}
    return {**found, "required": True} if in_path else found


def _failed() -> _Json:
    schema: _Json = {"$ref": "#/components/schemas/Failure"}
    content = {"application/json": {"schema": schema}}
    return {"default": {"description": "An error.", "content": content}}


def _schema(kind: object) -> _Json:
    (found,), _ = msgspec.json.schema_components(
        (kind,), ref_template="#/components/schemas/{name}"
    )
    return found
