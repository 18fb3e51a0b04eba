"""The OpenAI-compatible surface: which paths there are, and what is wrong with a body."""

import re
from collections.abc import Mapping
from typing import Final, Literal
from urllib.parse import parse_qs

import msgspec

from kvmesh.bounds import MAX_NAME, MaybeName, is_name, shown
from kvmesh.core.admission.paths import ROWS, find_row, rows_at
from kvmesh.core.chat.inference import InferenceRequest, decode_request
from kvmesh.errors import RequestError
from kvmesh.transport.http.server.request import Request

Kind = Literal[
    "chat", "completions", "responses", "messages", "embeddings", "models", "passthrough"
]

_POST: Final = frozenset({"POST"})
_READ: Final = frozenset({"GET", "HEAD"})
_NO_IDS: Final = msgspec.Raw(b"")
_FIRST_BYTES: Final = 64
_SEARCHED_BYTES: Final = 64 * 1024
"""A search for three names costs more than parsing in a longer body."""


class ApiEndpoint(msgspec.Struct, frozen=True):
    """One path of the API. `prompt` is the body's field that decides what is cached, if any."""

    kind: Kind
    methods: frozenset[str]
    prompt: Literal["messages", "prompt", "input"] | None = None


ENDPOINTS: Final[Mapping[str, ApiEndpoint]] = {
    "/v1/chat/completions": ApiEndpoint("chat", _POST, "messages"),
    "/v1/completions": ApiEndpoint("completions", _POST, "prompt"),
    "/v1/responses": ApiEndpoint("responses", _POST, "input"),
    "/v1/messages": ApiEndpoint("messages", _POST, "messages"),
    "/v1/embeddings": ApiEndpoint("embeddings", _POST, "input"),
    "/v1/models": ApiEndpoint("models", _READ),
}
PASSTHROUGH: Final = ApiEndpoint("passthrough", frozenset())
_RESPONSES: Final = "/v1/responses"
_BACKGROUND: Final = b'"background"'
OTHERS: Final[Mapping[str, ApiEndpoint]] = {
    row.path: ApiEndpoint("passthrough", row.methods)
    for row in ROWS
    if row.owner == "load" and not row.path.startswith("/v1/")
}
"""What some engine serves to clients outside /v1/, by load."""
_OWNED: Final = frozenset({"form", "home", "lists"})
"""Who answers where something belongs to a tenant: no other method may pass its owner by."""

_MODEL: Final = ApiEndpoint("models", _READ)
_WINDOW_BYTES: Final = 64 * 1024
_BOUNDARY: Final = re.compile(rb'boundary=(?:"([^"]{1,200})"|([^;\s"]{1,200}))', re.IGNORECASE)
_MODEL_FIELD: Final = re.compile(
    rb'^\s*content-disposition: *form-data; *name="?model"? *(?:;|\r|$)',
    re.IGNORECASE | re.MULTILINE,
)
_DISGUISES: Final = ("//", "/./", "/../", "%2e", "%2f", "%5c", "%00", "\\")


def find_endpoint(method: str, path: str, *, passthrough: bool) -> ApiEndpoint:
    """Return the endpoint at `path`; any other `/v1/…`, and each of `OTHERS`, is one without a
    prompt if `passthrough`.

    Raises `RequestError` 404 for what is not there, 405 for another method than the endpoint's,
    400 for a path that two servers could read differently, and what the table of paths refuses.
    """
    endpoint = ENDPOINTS.get(path)
    if endpoint is None and passthrough:
        row = find_row(method, path)
        if row is not None and row.status:
            raise RequestError(f"{method} {path:.80} is not served: {row.why}", status=row.status)
        rows = rows_at(path) if row is None else ()
        if rows and rows[0].owner in _OWNED:
            allowed = " or ".join(sorted(set().union(*(one.methods for one in rows))))
            raise RequestError(f"{path:.80} takes {allowed}, not {shown(method)}", status=405)
        endpoint = OTHERS.get(path)
    if endpoint is None:
        if path.startswith("/v1/models/"):
            endpoint = _MODEL
        elif passthrough and path.startswith("/v1/"):
            endpoint = PASSTHROUGH
        else:
            raise RequestError(f"there is nothing at {path}", status=404)
        lowered = path.lower()
        if any(disguise in lowered for disguise in _DISGUISES) or path.endswith(("/..", "/.")):
            raise RequestError(f"path {path} is ambiguous: send it in its plain form")
    if endpoint.methods and method not in endpoint.methods:
        allowed = " or ".join(sorted(endpoint.methods))
        raise RequestError(f"{path} takes {allowed}, not {method}", status=405)
    return endpoint


def may_repeat(request: Request) -> bool:
    """Return whether a request may be sent again that some engine may have begun: it only infers.

    Unknown paths may do anything, and a response that is made in the background goes on without its
    client.
    """
    path = request.path
    if path == _RESPONSES:
        return _BACKGROUND not in request.body
    return path in ENDPOINTS or path in OTHERS or request.method in _READ


class _Other(msgspec.Struct):
    model: MaybeName | None = None
    input_ids: msgspec.Raw = _NO_IDS
    token_ids: msgspec.Raw = _NO_IDS


_others = msgspec.json.Decoder(_Other)


def parse_other(body: bytes) -> tuple[str, msgspec.Raw]:
    """Return the model that any JSON body names, and the token ids that engines' own paths take.

    "" and nothing for none, and for what is no JSON object.
    """
    if not body.lstrip().startswith(b"{"):
        return "", _NO_IDS
    try:
        found = _others.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "", _NO_IDS
    ids = found.input_ids if memoryview(found.input_ids) else found.token_ids
    return found.model or "", ids


def parse_named(request: Request) -> tuple[str, msgspec.Raw]:
    """Return the model that a JSON body, a form or the query names, and a JSON body's token ids.

    Raises `RequestError` as `query_model` does.
    """
    kind = request.head.get(b"content-type") or b""
    if kind.lower().startswith(b"multipart/form-data"):
        return form_model(request.body, kind) or query_model(request.query), _NO_IDS
    model, ids = parse_other(request.body)
    return model or query_model(request.query), ids


def query_model(query: str) -> str:
    """Return the model that a query names; "" for none. Raises `RequestError` for no name."""
    if "model=" not in query:
        return ""
    found = parse_qs(query[:_WINDOW_BYTES]).get("model", [""])[0]
    if found and not is_name(found):
        raise RequestError(
            f"model of the query is {shown(found)}: a name has at most {MAX_NAME} characters, none "
            "of them a control character",
            param="model",
        )
    return found


def form_model(body: bytes, content_type: bytes) -> str:
    """Return the field `model` of a multipart form; "" for none, and for what is no name.

    Only the first and the last 64 KiB are looked at, so that no file is copied or searched.
    """
    found = _BOUNDARY.search(content_type)
    if found is None:
        return ""
    mark = b"\r\n--" + (found[1] or found[2])
    windows = [b"\r\n" + body[:_WINDOW_BYTES]]
    if len(body) > _WINDOW_BYTES:
        windows.append(body[max(_WINDOW_BYTES, len(body) - _WINDOW_BYTES) :])
    for part in (part for window in windows for part in window.split(mark)[1:-1]):
        head, _, value = part.partition(b"\r\n\r\n")
        if _MODEL_FIELD.search(head):
            name = value.decode("utf-8", "replace").strip()
            return name if is_name(name) else ""
    return ""


_ids: Final = msgspec.json.Decoder(list[int | list[int]])


def read_ids(raw: msgspec.Raw) -> list[list[int]]:
    """Return the prompts of a field that holds the token ids of one or of several; none for what is
    neither, of which the engine is the judge.
    """
    if not memoryview(raw):
        return []
    try:
        found: list[int | list[int]] = _ids.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    batch = [one for one in found if isinstance(one, list)]
    return [*batch, [one for one in found if isinstance(one, int)]]


def prompt_endpoint(body: bytes) -> ApiEndpoint:
    """Return the endpoint whose prompt `body` holds. Raises `RequestError`."""
    paths = "/v1/chat/completions", "/v1/completions", "/v1/responses"
    if len(body) > _SEARCHED_BYTES:
        parsed = parse_request(body, PASSTHROUGH)
        prompts = (parsed.messages, parsed.prompt, parsed.input)
        for path, raw in zip(paths, prompts, strict=True):
            if memoryview(raw):
                return ENDPOINTS[path]
    else:
        for path, field in zip(paths, (b'"messages"', b'"prompt"', b'"input"'), strict=True):
            if field in body:
                return ENDPOINTS[path]
    raise RequestError("send the body of a chat (messages) or a completion (prompt)")


def read_request(request: Request, endpoint: ApiEndpoint) -> InferenceRequest:
    """Return what routing needs of a request. Raises `RequestError` (400, 415)."""
    try:
        return parse_request(request.body, endpoint)
    except RequestError as error:
        coding = (request.header(b"content-encoding") or b"identity").decode("latin-1")
        if coding.lower() == "identity":
            raise
        raise RequestError(
            f"a body with content-encoding {coding} cannot be read: send it uncompressed",
            status=415,
        ) from error


def parse_request(body: bytes, endpoint: ApiEndpoint) -> InferenceRequest:
    """Return what routing needs of `body`. Raises `RequestError` (400) naming the field.

    Nothing that is no UTF-8 passes, also in what is not decoded here.
    """
    try:
        request = decode_request(body)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        raise RequestError(f"{path.rstrip('`') or 'body'}: {text}", param=_field(path)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from error
    if endpoint.prompt is not None:
        _check_prompt(request, endpoint.prompt)
    if request.n is not None and request.n < 1:
        raise RequestError(f"n is {shown(request.n)}: ask for at least one choice", param="n")
    for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"):
        limit = getattr(request, name)
        if limit is not None and limit < 0:
            raise RequestError(f"{name} is {shown(limit)}: it cannot be negative", param=name)
    return request


def _field(path: str) -> str | None:
    """Return the top-level field of a msgspec path, `kvmesh` of `kvmesh.priority`."""
    name = path.rstrip("`").partition(".")[0].partition("[")[0]
    return name or None


def _check_prompt(request: InferenceRequest, name: Literal["messages", "prompt", "input"]) -> None:
    raw = {"messages": request.messages, "prompt": request.prompt, "input": request.input}[name]
    start = bytes(memoryview(raw)[:4])
    if start in {b"", b"null"}:
        if (request.prompt_embeds and name == "prompt") or (request.messages and name == "input"):
            return  # what may stand in its place
        raise RequestError(f"{name} is missing", param=name)
    if name == "messages" and not start.startswith(b"["):
        raise RequestError("messages is not a list", param=name)


def is_chat_input(raw: msgspec.Raw) -> bool:
    """Return whether an embedding's `input` holds chats, or is missing since `messages` do."""
    return bytes(memoryview(raw)[:_FIRST_BYTES]).lstrip(b"[ \t\r\n")[:1] in {b"", b"n", b"{"}


_prompts: Final = msgspec.json.Decoder(str | list[str | int | list[int]])


def read_prompts(raw: msgspec.Raw) -> list[str | list[int]]:
    """Return the prompts of `prompt` or an embedding `input`: texts, or token ids.

    Engines take a string, token ids, or a list of either; a batch is routed by its first.
    Raises `RequestError`.
    """
    try:
        value: str | list[str | int | list[int]] = _prompts.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RequestError(f"prompt: {error}", param="prompt") from error
    if isinstance(value, str):
        return [value]
    if not value:
        raise RequestError("prompt is an empty list", param="prompt")
    if isinstance(value[0], int):
        return [[item for item in value if isinstance(item, int)]]
    return [item for item in value if not isinstance(item, int)]


def first_prompt(raw: msgspec.Raw) -> str | list[int]:
    """Return the prompt that a batch is routed by. Raises `RequestError`."""
    return read_prompts(raw)[0]
