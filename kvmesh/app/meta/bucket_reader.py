"""What a meta-router reads of a request to choose its bucket."""

import msgspec

from kvmesh.app.meta.session_names import SessionNames
from kvmesh.app.prompts.isolation import Isolation
from kvmesh.app.prompts.prompt_outline import PromptOutline, prompt_outline
from kvmesh.app.prompts.reading_threads import INLINE_BYTES, INLINE_ITEMS
from kvmesh.app.prompts.request_wishes import NO_EXTENSION, named_workers
from kvmesh.bounds import MAX_NAME, is_name, shown
from kvmesh.core.buckets.buckets import BucketTable
from kvmesh.core.buckets.rules import BucketRequest
from kvmesh.core.chat.inference import InferenceRequest
from kvmesh.errors import RequestError
from kvmesh.transport.http.openai import (
    PASSTHROUGH,
    ApiEndpoint,
    parse_model,
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


class BucketReader:
    """Reads requests; a prompt is looked at only where `table` has a choice, or `rules`.

    `isolation` keeps the conversations of tenants apart; their bodies are salted by the router.
    """

    def __init__(
        self,
        table: BucketTable,
        sessions: SessionNames,
        *,
        rules: bool,
        isolation: Isolation | None = None,
    ) -> None:
        self._isolation = isolation
        self._table = table
        self._sessions = sessions
        self._rules = rules

    def digest(self, request: Request, endpoint: ApiEndpoint | None, *, check: bool) -> Digest:
        """Return what is read of a body, in any thread; None: its prompt tells the endpoint.

        `check`: at the prompt, too. Raises `RequestError`.
        """
        endpoint = endpoint or prompt_endpoint(request.body)
        if endpoint.prompt is None:
            return Digest(endpoint, InferenceRequest(model=parse_model(request.body)))
        parsed = read_request(request, endpoint)
        return Digest(endpoint, parsed, self._outline(request, endpoint, parsed) if check else None)

    def digest_question(self, request: Request, *, check: bool) -> Digest:
        """Return as `digest` does; of a body without a prompt its model alone, for the replica says
        what is wrong with it, or reads token ids.
        """
        try:
            return self.digest(request, None, check=check)
        except RequestError:
            return Digest(PASSTHROUGH, InferenceRequest(model=parse_model(request.body)))

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
        extension = parsed.kvmesh or NO_EXTENSION
        bucket = _named(request) or extension.bucket or ""
        workers = named_workers(request, extension)
        model = parsed.model or ""
        sessions = self._sessions.read(request, extension)
        chooses = self._rules or len(self._table.buckets()) > 1
        if not check and (bucket or not chooses):
            return BucketRequest(bucket=bucket, model=model, workers=workers, sessions=sessions)
        outline = outline or self._outline(request, endpoint, parsed)
        return BucketRequest(
            bucket=bucket,
            model=model,
            headers=_texts(request.headers) if self._rules or check else {},
            prompt_chars=outline.chars,
            prompt_start=outline.start,
            workers=workers,
            opening=outline.opening,
            keys=outline.keys,
            sessions=sessions,
        )

    def read_other(self, request: Request, model: str | None = None) -> BucketRequest:
        """Return what is to be known of a request without a prompt that this surface knows.

        `model` is the body's, where a thread has read it.
        """
        if model is None:
            model = parse_model(request.body)
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
