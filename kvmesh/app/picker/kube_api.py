"""The API server: collections of one namespace listed and watched, objects annotated.

lightkube brings where the server is and how to log in (service account, kubeconfig, tokens that
rotate). The requests are made here, since its own watch neither asks for bookmarks nor pauses
before it connects again, and reads lines of any length.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Final, Literal

import httpx2
import msgspec
import yaml
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError as LightkubeConfigError

from kvmesh.app.picker.kube_objects import Collection
from kvmesh.bounds import MAX_TEXT, UNREADABLE, MaybeName, Reading, Text
from kvmesh.errors import ApiServerError, CodecError, ConfigError, SlowError, TransportError

PAGE: Final = 500
"""Objects a page of a list."""

MOST_OBJECTS: Final = 1 << 16
"""Objects of one list: more are refused as a whole, rather than half of them taken for all."""

MOST_PAGES: Final = 1024
"""Pages of one list: a server may send fewer objects a page than asked for, and even none."""

MOST_LIST_BYTES: Final = 256 << 20
"""All pages of one list, and any other answer."""

MOST_LINE_BYTES: Final = 4 << 20
"""One event, one object: etcd stores objects of 1.5 MB at most."""

CONNECT_S: Final = 5.0
ANSWER_S: Final = 15.0
SLACK_S: Final = 15.0
"""A watch that the server should have ended, and which says nothing for so long, is dead."""

GONE: Final = 410
UNREADABLE_CONFIG: Final = (
    *(LightkubeConfigError, yaml.YAMLError, OSError, ValueError),
    *(KeyError, TypeError, AttributeError),  # a kubeconfig of another form is read unchecked
)
_OK: Final = 200
_MERGED: Final = {
    "content-type": "application/merge-patch+json",
    # Of the object that comes back only its metadata, where the server can leave the rest out.
    "accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json",
}


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: MaybeName = ""
    continue_: Annotated[str, msgspec.Meta(max_length=1 << 16)] | None = msgspec.field(
        name="continue", default=None
    )


class _Page(msgspec.Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: tuple[msgspec.Raw, ...] | None = None


class _Line(msgspec.Struct, frozen=True):
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: msgspec.Raw


class _Status(msgspec.Struct, frozen=True):
    code: Reading = 0
    message: str = ""


class _Versioned(msgspec.Struct, frozen=True):
    metadata: _ListMeta


class Query(msgspec.Struct, frozen=True):
    """What of a namespace is asked for. `labels` and `name` narrow it; {} and "" do not."""

    collection: Collection
    namespace: str
    labels: Mapping[str, str] = {}
    name: str = ""

    def parameters(self) -> dict[str, str]:
        """Return them as the API server takes them."""
        asked: dict[str, str] = {}
        if self.labels:
            asked["labelSelector"] = ",".join(f"{key}={self.labels[key]}" for key in self.labels)
        if self.name:
            asked["fieldSelector"] = f"metadata.name={self.name}"
        return asked

    def __str__(self) -> str:
        return f"{self.collection} of namespace {self.namespace}"


class Listing(msgspec.Struct, frozen=True):
    """All objects of a query, as of `version`."""

    items: tuple[msgspec.Raw, ...]
    version: str


class Event(msgspec.Struct, frozen=True):
    """One change; `version` is where a watch goes on behind it, "" where that is not said.

    A bookmark changes nothing but that.
    """

    kind: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    data: msgspec.Raw
    version: str


class Asker(msgspec.Struct, frozen=True):
    """Who asks an API server: by which flag, and what to do where it may not, of a collection."""

    flag: str
    rights: str


WATCHER: Final = Asker(
    "--inference-pool",
    "let the picker's service account get, list and watch {} (the Role of "
    "deploy/k8s/overlays/gateway)",
)


class KubeApi:
    """One API server, for one caller at a time: others ask by a `twin`. A call fails with
    `TransportError`, one that the server refuses with `ApiServerError`.
    """

    def __init__(self, config: SingleConfig, asker: Asker = WATCHER) -> None:
        self._config = config
        self._asker = asker
        self._client: httpx2.AsyncClient | None = None

    @property
    def server(self) -> str:
        """Return the server's URL."""
        return self._config.cluster.server

    @property
    def namespace(self) -> str:
        """Return the namespace of the service account, or of the kubeconfig's context."""
        return self._config.namespace.strip()

    def twin(self) -> "KubeApi":
        """Return the same server for another caller."""
        return KubeApi(self._config, self._asker)

    async def list(self, query: Query) -> Listing:
        """Return all objects as of now."""
        asked = {**query.parameters(), "limit": str(PAGE)}
        items: list[msgspec.Raw] = []
        size = 0
        for _ in range(MOST_PAGES):
            async with self._ask(query, asked, ANSWER_S) as answer:
                body = await self._body(answer, query, MOST_LIST_BYTES, size)
            size += len(body)
            try:
                page = msgspec.json.decode(body, type=_Page)
            except UNREADABLE as error:
                raise CodecError(f"list of {query}: {error}") from error
            items += page.items or ()
            if len(items) > MOST_OBJECTS:
                raise TransportError(f"list of {query}: more than {MOST_OBJECTS:,} objects")
            if not page.metadata.continue_:
                return Listing(tuple(items), page.metadata.resource_version)
            asked["continue"] = page.metadata.continue_
        raise TransportError(f"list of {query}: more than {MOST_PAGES:,} pages")

    async def watch(self, query: Query, version: str, seconds: int) -> AsyncGenerator[Event, None]:
        """Yield the changes behind `version` until the server ends the watch, after `seconds`.

        Raises `ApiServerError` with status 410 where it no longer knows the changes since.
        """
        asked = {
            **query.parameters(),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        }
        async with self._ask(query, asked, seconds + SLACK_S) as answer:
            async for line in _lines(answer, query):
                yield read_event(line, query)

    async def annotate(self, query: Query, annotations: Mapping[str, str]) -> None:
        """Give the object that `query` names these annotations; its others stay."""
        patch = msgspec.json.encode({"metadata": {"annotations": annotations}})
        async with self._ask(query, {"fieldManager": "kvmesh"}, ANSWER_S, patch) as answer:
            await self._body(answer, query, MOST_LINE_BYTES)

    async def close(self) -> None:
        """Let go of the connections; they are made anew, with what is on disk then."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    @asynccontextmanager
    async def _ask(
        self, query: Query, asked: dict[str, str], silence_s: float, patch: bytes | None = None
    ) -> AsyncGenerator[httpx2.Response, None]:
        """Send a request; yield a good answer, whose body is to be read within the block. `patch`
        is for the one object that is named.
        """
        timeout = httpx2.Timeout(ANSWER_S, connect=CONNECT_S, read=silence_s)
        method, path = "GET", query.collection.path(query.namespace)
        if patch is not None:
            method, path = "PATCH", f"{path}/{query.name}"
        headers = None if patch is None else _MERGED
        try:
            if self._client is None:
                self._client = AsyncClient(self._config, ConnectionParams())
            async with self._client.stream(
                method, path, params=asked, timeout=timeout, content=patch, headers=headers
            ) as answer:
                if answer.status_code != _OK:
                    body = await self._body(answer, query, MOST_LINE_BYTES)
                    raise _refusal(answer.status_code, body, query, self._asker)
                yield answer
        except httpx2.ConnectError as error:
            # The server's CA may be another by now: the next one is made with what is on disk then.
            await self.close()
            raise TransportError(f"{self.server}: {query}: {error}"[:MAX_TEXT]) from error
        except httpx2.TimeoutException as error:
            why = f"{self.server}: no answer for {query} in time"
            raise SlowError(why) from error
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            said = str(error) or type(error).__name__
            raise TransportError(f"{self.server}: {query}: {said}"[:MAX_TEXT]) from error
        except LightkubeConfigError as error:
            raise TransportError(f"{self.server}: {error}"[:MAX_TEXT]) from error

    async def _body(
        self, answer: httpx2.Response, query: Query, most: int, before: int = 0
    ) -> bytes:
        body = bytearray()
        async for piece in answer.aiter_bytes():
            body += piece
            if before + len(body) > most:
                raise TransportError(f"{query}: an answer of more than {most:,} bytes")
        return bytes(body)


def connect(context: str = "", account: str = SERVICE_ACCOUNT, asker: Asker = WATCHER) -> KubeApi:
    """Return the API server of this pod's cluster, whose files are in `account`, else of the
    kubeconfig's `context` ("": its current one). Raises `ConfigError` where there is neither.
    """
    try:
        config = KubeConfig.from_env(service_account=account).get(context or None)
    except (*UNREADABLE_CONFIG, *UNREADABLE) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"{asker.flag}: no API server is known: {why[:MAX_TEXT]}; run in a pod with its "
            "service account's token mounted, or give a kubeconfig ($KUBECONFIG, ~/.kube/config)"
        ) from error
    if config is None or config.user is None:
        raise ConfigError(f"{asker.flag}: the kubeconfig names no user to log in as")
    return KubeApi(config, asker)


async def _lines(answer: httpx2.Response, query: Query) -> AsyncIterator[bytes]:
    """Yield whole lines. Raises `CodecError` for one that is too long."""
    rest = bytearray()
    async for piece in answer.aiter_bytes():
        *whole, last = piece.split(b"\n")
        for line in whole:
            rest += line
            _check_line(rest, query)
            if rest.strip():
                yield bytes(rest)
            rest.clear()
        rest += last
        _check_line(rest, query)


def _check_line(line: bytearray, query: Query) -> None:
    if len(line) > MOST_LINE_BYTES:
        raise CodecError(f"watch of {query}: an event of more than {MOST_LINE_BYTES:,} bytes")


def read_event(line: bytes, query: Query) -> Event:
    """Return what one line of a watch says. Raises `CodecError`, or `ApiServerError` for an error
    that the server tells in place of an event.
    """
    try:
        change = msgspec.json.decode(line, type=_Line)
        if change.type == "ERROR":
            status = msgspec.json.decode(change.object, type=_Status)
            raise ApiServerError(f"watch of {query}: {status.message[:MAX_TEXT]}", status.code)
        version = msgspec.json.decode(change.object, type=_Versioned).metadata.resource_version
    except UNREADABLE as error:
        raise CodecError(f"watch of {query}: {error}") from error
    return Event(change.type, change.object, version)


def _refusal(status: int, body: bytes, query: Query, asker: Asker) -> ApiServerError:
    """Return what the server's refusal means, and what to do."""
    try:
        message: Text = msgspec.json.decode(body, type=_Status).message
    except UNREADABLE:
        message = body[:200].decode(errors="replace")
    collection = query.collection
    match status:
        case 401:
            remedy = "the API server does not accept the token or certificate"
        case 403:
            remedy = asker.rights.format(collection.plural)
        case 404 if collection.group:
            remedy = f"is the CustomResourceDefinition of {collection} installed?"
        case _:
            remedy = ""
    said = "; ".join(part for part in (message[:MAX_TEXT], remedy) if part)
    return ApiServerError(f"{query}: the API server answered {status}: {said}", status)
