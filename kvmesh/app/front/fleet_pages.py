"""Paths that tell of one engine, answered for all of them; and paths that are refused."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from kvmesh.app.front.front import PathRoutes, answer_json
from kvmesh.app.front.viewers import Viewers
from kvmesh.bounds import UNREADABLE
from kvmesh.core.admission.access import ROLES_HEADER, Viewer, role_for
from kvmesh.core.admission.paths import ROWS
from kvmesh.errors import TransportError
from kvmesh.transport.http.fetch import HTTP_OK, fetch
from kvmesh.transport.http.server.incoming import E, Incoming
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem

MOST_ASKED: Final = 256
"""Engines that one request asks; of a larger fleet the first by name."""

AT_ONCE: Final = 32
"""Questions at a time, of all requests together."""

TIMEOUT_S: Final = 5.0
MOST_BYTES: Final = 256 * 1024
"""Of one engine's answer; one above it is left out, with a reason."""

BAD_GATEWAY: Final = 502
UNAVAILABLE: Final = 503
_LISTS: Final = frozenset(row.path for row in ROWS if row.owner == "lists")
WORKERS: Final = "workers"
_PASSED: Final = frozenset({b"authorization", b"x-api-key", b"x-kvmesh-tenant", ROLES_HEADER})


class Answered(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one engine answered: `body` is JSON or text; `status` 0 and `error`: nothing."""

    status: int
    body: object = None
    error: str = ""


class FleetPages:
    """Asks all of `origins` (their URLs by name), engines or routers, for what a client asks.

    `owns` says whether a tenant owns what is at a path; None: routers have looked after that.
    """

    def __init__(
        self,
        pool: UpstreamPool,
        origins: Callable[[], Mapping[str, str]],
        viewers: Viewers,
        owns: Callable[[str, str], bool] | None = None,
    ) -> None:
        self._pool = pool
        self._origins = origins
        self._viewers = viewers
        self._owns = owns
        self._gate = asyncio.Semaphore(AT_ONCE)

    def mount(self, routes: PathRoutes[E], others: Callable[[E], None]) -> None:
        """Serve the paths of the fleet; `others` serves what stands beside."""
        for row in ROWS:
            path, _, rest = row.path.partition("{}")
            if rest or path != row.path:
                if row.status and not path.startswith("/v1/"):
                    routes.add_prefix(path, others)
                continue
            for method in row.methods:
                if row.owner in {"fleet", "lists"}:
                    routes.add(method, path, self.serve)
                elif row.status or row.owner in {"form", "load"}:
                    routes.add(method, path, others)

    def serve(self, exchange: Incoming) -> None:
        """Answer for all engines."""
        viewer = None
        if exchange.request.path in _LISTS:
            viewer = self._viewers.of(exchange.request)
        elif role_for(exchange.request.path) != "infer":
            self._viewers.refuse_tenants(exchange.request)
        exchange.scope.start(self._answer(exchange, viewer))

    async def _answer(self, exchange: Incoming, viewer: Viewer | None) -> None:
        request = exchange.request
        origins = sorted(self._origins().items())[:MOST_ASKED]
        if not origins:
            exchange.fail(Problem(UNAVAILABLE, "no worker is there to be asked"))
            return
        headers = tuple(one for one in request.headers if one[0] in _PASSED)
        path = request.target.decode("ascii")
        asked = (self._ask(url, path, headers) for _, url in origins)
        found = dict(zip((name for name, _ in origins), await asyncio.gather(*asked), strict=True))
        answers = _flat(found)
        status = _status(found.values())
        shared = _shared(answers.values())
        if viewer is not None:
            shared = {"object": "list", "data": self._owned(request, viewer, found.values())}
        elif "data" in shared or any(_list_of(one) is not None for one in answers.values()):
            lists = (_list_of(one) or [] for one in answers.values())
            shared = {"object": "list", "data": [item for one in lists for item in one]}
        if viewer is None and not self._viewers.hides(request):
            shared[WORKERS] = answers
        answer_json(exchange, shared, status=status)

    def _owned(self, request: Request, viewer: Viewer, answers: Iterable[Answered]) -> list[object]:
        """Return what of all lists is the viewer's own; nothing of a router that tells everybody
        of all its workers.
        """
        items = [item for one in answers for item in _list_of(one) or [] if not _is_flat(one)]
        if self._owns is None:
            return items
        start, owns, tenant = request.path, self._owns, viewer.tenant
        return [item for item in items if owns(tenant, f"{start}/{_id_of(item)}")]

    async def _ask(self, url: str, path: str, headers: Headers) -> Answered:
        try:
            async with self._gate:
                status, body = await fetch(
                    self._pool, url, path, timeout_s=TIMEOUT_S, headers=headers
                )
        except TransportError as error:
            return Answered(0, error=str(error))
        if len(body) > MOST_BYTES:
            return Answered(0, error=f"an answer above {MOST_BYTES:,} bytes")
        return Answered(status, read_body(body))


def read_body(body: bytes, most: int | None = None) -> object:
    """Return what JSON says, or else the text, at most so many bytes of it."""
    try:
        found: object = msgspec.json.decode(body)
    except UNREADABLE:
        return body[:most].decode("utf-8", "replace")
    return found


def _flat(found: Mapping[str, Answered]) -> dict[str, Answered]:
    """Return the answers of engines, also where routers have answered for theirs."""
    answers: dict[str, Answered] = {}
    for name, one in found.items():
        inner = one.body.get(WORKERS) if isinstance(one.body, dict) else None
        try:
            answers |= msgspec.convert(inner, dict[str, Answered])
        except msgspec.ValidationError:
            answers[name] = one
    return answers


def _status(answers: Iterable[Answered]) -> int:
    """Return 200 where any engine answered so, the one status of all, else 502."""
    statuses = {one.status for one in answers}
    if HTTP_OK in statuses:
        return HTTP_OK
    return (statuses.pop() if len(statuses) == 1 else 0) or BAD_GATEWAY


def _shared(answers: Iterable[Answered]) -> dict[str, object]:
    """Return the fields in which all engines that answered agree, as one engine would have them."""
    bodies = [one.body for one in answers if one.status == HTTP_OK]
    first = bodies[0] if bodies else None
    if not isinstance(first, dict):
        return {}
    return {
        str(key): value
        for key, value in first.items()
        if all(isinstance(one, dict) and key in one and one[key] == value for one in bodies)
    }


def _is_flat(answer: Answered) -> bool:
    return isinstance(answer.body, dict) and WORKERS in answer.body


def _id_of(item: object) -> object:
    return item.get("id") if isinstance(item, dict) else None


def _list_of(answer: Answered) -> list[object] | None:
    """Return what an engine lists, None where it answered no list."""
    found = answer.body.get("data") if isinstance(answer.body, dict) else None
    return found if isinstance(found, list) and answer.status == HTTP_OK else None
