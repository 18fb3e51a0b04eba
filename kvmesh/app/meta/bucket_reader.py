"""What a meta-router reads of a request to choose its bucket."""

from typing import Final, NamedTuple, Protocol

import msgspec

from kvmesh._native import Names, scan
from kvmesh.app.meta.session_names import SessionNames
from kvmesh.app.prompts.isolation import Isolation
from kvmesh.app.prompts.prompt_outline import PromptOutline, prompt_outline, scanned_outline
from kvmesh.app.prompts.reading_parts import is_short
from kvmesh.app.prompts.reading_threads import INLINE_BYTES, INLINE_ITEMS
from kvmesh.app.prompts.request_wishes import named_workers
from kvmesh.app.prompts.wish_values import NO_EXTENSION
from kvmesh.bounds import MAX_NAME, is_name, shown
from kvmesh.core.buckets.buckets import BucketTable
from kvmesh.core.buckets.rules import BucketRequest
from kvmesh.core.chat.inference import Extension, InferenceRequest
from kvmesh.errors import RequestError
from kvmesh.transport.http.openai import (
    PASSTHROUGH,
    ApiEndpoint,
    parse_named,
    prompt_endpoint,
    read_request,
)
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.wire.headers import Headers


class Digest(msgspec.Struct, frozen=True):
    """A body as far as it is read: parsed, and what its prompt looks like."""

    endpoint: ApiEndpoint
    parsed: InferenceRequest
    outline: PromptOutline | None = None


def is_long(request: Request) -> bool:
    """Return whether to read the request in a thread."""
    return len(request.body) > INLINE_BYTES or request.items > INLINE_ITEMS


class _Said(NamedTuple):
    """What headers and the body's field `kvmesh` say of where a request belongs."""

    bucket: str = ""
    workers: frozenset[str] = frozenset()
    sessions: tuple[int, ...] = ()


_NOTHING: Final = _Said()
_NAMING: Final = (b"x-kvmesh-bucket", b"x-kvmesh-worker-id", b"x-kvmesh-allowed-workers")
_PLACES: Final = Names(_NAMING, b"")
_SCANNED: Final = frozenset({"chat", "completions"})


class Read(Protocol):
    """Reads a body, in any thread; `check`: at its prompt, too. Raises `RequestError`."""

    def __call__(self, *, check: bool) -> Digest:
        """Return what was read."""


class BucketReader:
    """Reads requests; a prompt is looked at only where `table` has a choice, or `rules`, or there
    are other `sites`.

    `isolation` keeps the conversations of tenants apart; their bodies are salted by the router.
    """

    def __init__(
        self,
        table: BucketTable,
        sessions: SessionNames,
        *,
        rules: bool,
        sites: bool = False,
        isolation: Isolation | None = None,
    ) -> None:
        self._isolation = isolation
        self._table = table
        self._sessions = sessions
        self._rules = rules
        self._sites = sites
        self._asked = Names((*_NAMING, *sessions.headers), b"")

    def scan(self, request: Request, endpoint: ApiEndpoint) -> tuple[BucketRequest, bool] | None:
        """Return what is to be known of a chat or completion, and whether its answer streams, by
        one compiled look at its body; None for what has to be parsed. Raises `RequestError`.
        """
        body = request.body
        if not is_short(request) or endpoint.kind not in _SCANNED:
            return None
        scanned = scan(body, endpoint.kind == "chat")
        if scanned is None:
            return None
        bucket, workers, sessions = said = self._said(request)
        if bucket or not self._chooses():
            found = BucketRequest(bucket, scanned.model, workers=workers, sessions=sessions)
            return found, scanned.streams
        if len(body) > INLINE_BYTES or self._isolation is not None:
            return None
        outline = scanned_outline(scanned)
        if outline is None:
            return None
        return self._with_prompt(request, said, scanned.model, outline), scanned.streams

    def digest(self, request: Request, endpoint: ApiEndpoint | None, *, check: bool) -> Digest:
        """Return what is read of a body, in any thread; None: its prompt tells the endpoint.

        `check`: at the prompt, too. Raises `RequestError`.
        """
        endpoint = endpoint or prompt_endpoint(request.body)
        if endpoint.prompt is None:
            return Digest(endpoint, InferenceRequest(model=parse_named(request)[0]))
        parsed = read_request(request, endpoint)
        return Digest(endpoint, parsed, self._outline(request, endpoint, parsed) if check else None)

    def digest_question(self, request: Request, *, check: bool) -> Digest:
        """Return as `digest` does; of a body without a prompt its model alone, for the replica says
        what is wrong with it, or reads token ids.
        """
        try:
            return self.digest(request, None, check=check)
        except RequestError:
            return Digest(PASSTHROUGH, InferenceRequest(model=parse_named(request)[0]))

    def _outline(
        self, request: Request, endpoint: ApiEndpoint, parsed: InferenceRequest
    ) -> PromptOutline:
        if self._isolation is not None:
            salt = self._isolation.of_tenant(request, parsed)
            parsed = msgspec.structs.replace(parsed, cache_salt=salt)
        return prompt_outline(endpoint, parsed)

    def read(
        self,
        request: Request,
        endpoint: ApiEndpoint,
        parsed: InferenceRequest,
        *,
        check: bool = False,
        outline: PromptOutline | None = None,
    ) -> BucketRequest:
        """Return what is to be known of a request; its prompt in any case with `check`.

        `outline` is the prompt's, where a thread has made it (`digest`).
        """
        bucket, workers, sessions = said = self._said(request, parsed.kvmesh or NO_EXTENSION)
        model = parsed.model or ""
        if not check and (bucket or not self._chooses()):
            return BucketRequest(bucket, model, workers=workers, sessions=sessions)
        outline = outline or self._outline(request, endpoint, parsed)
        return self._with_prompt(request, said, model, outline, check=check)

    def _with_prompt(
        self,
        request: Request,
        said: _Said,
        model: str,
        outline: PromptOutline,
        *,
        check: bool = False,
    ) -> BucketRequest:
        return BucketRequest(
            bucket=said.bucket,
            model=model,
            headers=_texts(request.headers) if self._rules or check else {},
            prompt_chars=outline.chars,
            prompt_start=outline.start,
            workers=said.workers,
            opening=outline.opening,
            keys=outline.keys,
            sessions=said.sessions,
        )

    def _chooses(self) -> bool:
        """Return whether a prompt may tell of its bucket."""
        return self._rules or self._sites or len(self._table.buckets()) > 1

    def _said(self, request: Request, extension: Extension = NO_EXTENSION) -> _Said:
        """Return what headers say, and `extension` beside them. Raises `RequestError`."""
        head, silent = request.head, extension is NO_EXTENSION
        if silent and not head.has(self._asked):
            return _NOTHING
        bucket, workers = "", _NOTHING.workers
        if not silent or head.has(_PLACES):
            bucket = _named(request) or extension.bucket or ""
            workers = named_workers(request, extension)
        return _Said(bucket, workers, self._sessions.read(request, extension))

    def read_other(self, request: Request, model: str | None = None) -> BucketRequest:
        """Return what is to be known of a request without a prompt that this surface knows.

        `model` is the body's, where a thread has read it.
        """
        if model is None:
            model = parse_named(request)[0]
        return BucketRequest(
            bucket=_named(request),
            model=model or request.path.partition("/v1/models/")[2],
            workers=named_workers(request),
            sessions=self._sessions.read(request),
        )

    def read_question(self, request: Request, digest: Digest) -> BucketRequest:
        """Return what is to be known of a request that only asks where its prompt would go."""
        if digest.endpoint.prompt is None:
            wanted = self.read_other(request, digest.parsed.model or "")
        else:
            wanted = self.read(request, digest.endpoint, digest.parsed, outline=digest.outline)
        return msgspec.structs.replace(wanted, asks=True)


def _texts(headers: Headers) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}


def _named(request: Request) -> str:
    name = (request.header(b"x-kvmesh-bucket") or b"").decode("latin-1").strip()
    if name and not is_name(name):
        raise RequestError(
            f"header x-kvmesh-bucket is {shown(name)}: a name has at most {MAX_NAME} characters, "
            "none of them a control character",
            param="x-kvmesh-bucket",
        )
    return name
