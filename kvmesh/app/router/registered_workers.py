"""Engines that register themselves over HTTP: POST and DELETE /workers."""

from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import parse_qs, unquote

import msgspec

from kvmesh.app.front.admin_guard import AdminGuard
from kvmesh.app.front.front import Routes, answer_json
from kvmesh.app.front.viewers import Viewers
from kvmesh.app.members.worker_option import StaticWorker, parse_workers
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.bounds import UNREADABLE, MaybeName
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.url_guard import UrlGuard
from kvmesh.errors import ConfigError, RequestError
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.request import Request

PATH: Final = "/workers"
MOST_REGISTERED: Final = 1024
_FORBIDDEN, _NOT_FOUND, _CONFLICT, _FULL, _NOT_HERE = 403, 404, 409, 429, 501
_ACCEPTED: Final = 202
_NONE_OF_ITS_OWN: Final = (
    "this router follows a mesh, or is one of --processes: start `kvmesh worker --engine-url URL` "
    "beside the engine, or list engines in a file by --discover"
)


class _Given(msgspec.Struct):
    """What a client tells of an engine; other fields of other routers' are passed over."""

    url: str
    model_id: MaybeName = ""
    model: MaybeName = ""
    name: MaybeName = ""


class RegisteredWorkers:
    """The engines registered at this router, a source of its `Discovery`, which calls `find`.

    `fixed` are those of --worker, `guard` judges all others. They are forgotten with the process.
    """

    def __init__(self, fixed: Sequence[str], guard: UrlGuard) -> None:
        self._fixed = fixed
        self._guard = guard
        self._texts: dict[str, str] = {}
        self._urls: dict[str, str] = {}
        self.changed: Callable[[], None] | None = None

    def has(self, name: str) -> bool:
        """Return whether one has that name."""
        return name in self._texts

    def at(self, url: str) -> str:
        """Return the name of the one at that URL, whose ranks have names of their own; "": none."""
        return self._urls.get(url, "")

    async def find(self) -> list[str]:
        """Return them as --worker has them."""
        return [*self._texts.values()]

    def add(self, given: _Given, now: float) -> StaticWorker:
        """Take an engine, or what is new of a known one. Raises `RequestError`."""
        if any(sign in given.url for sign in ",@= \t") or "=" in given.name:
            raise RequestError(f"url {given.url!r}: write http://host:port", param="url")
        name, model = given.name and f"{given.name}=", given.model or given.model_id
        text = f"{name}{given.url}" + (f"@{model}" if model else "")
        try:
            (found,) = parse_workers([text])
            parse_workers([*self._fixed, *(self._texts | {found.worker: text}).values()])
        except ConfigError as error:
            raise RequestError(str(error).replace("--worker", "url"), param="url") from error
        refusal = self._guard.judge(found.worker, found.url, now)
        if refusal is not None:
            raise RequestError(f"url {given.url!r}: {refusal.reason}", status=_FORBIDDEN)
        if len(self._texts) >= MOST_REGISTERED and found.worker not in self._texts:
            raise RequestError(f"{MOST_REGISTERED} workers are registered", status=_FULL)
        self._texts[found.worker] = text
        self._urls = {one.url: one.worker for one in parse_workers([*self._texts.values()])}
        self._report()
        return found

    def remove(self, name: str) -> None:
        """Forget one. Raises `RequestError` for one that was not registered."""
        if self._texts.pop(name, None) is None:
            text = f"worker {name!r} was not registered here: it is of --worker or --discover"
            raise RequestError(text, status=_CONFLICT)
        self._urls = {url: one for url, one in self._urls.items() if one != name}
        self._report()

    def _report(self) -> None:
        if self.changed is not None:
            self.changed()


class WorkersPages:
    """Serves them. `registered` None: none may come so."""

    def __init__(
        self,
        context: RoutingContext,
        registered: RegisteredWorkers | None,
        guard: AdminGuard | None,
        viewers: Viewers,
    ) -> None:
        self._context = context
        self._registered = registered
        self._guard = guard
        self._viewers = viewers

    def mount(self, routes: Routes) -> None:
        """Serve the paths."""
        routes.add("GET", PATH, self._list)
        routes.add("POST", PATH, self._add)
        routes.add("DELETE", PATH, self._remove)
        routes.add_prefix(f"{PATH}/", self._one)

    def _list(self, exchange: Exchange) -> None:
        self._viewers.refuse_tenants(exchange.request)
        registered = self._registered
        membership, now = self._context.workers.membership, self._context.clock()
        workers = [
            {
                "id": beat.worker,
                "url": beat.url,
                "models": beat.models,
                "is_healthy": (why_not := membership.why_not(beat.worker, now)) is None,
                "why_not": why_not,
                "registered": registered is not None and bool(registered.at(beat.url)),
            }
            for beat in self._context.router.workers()
        ]
        answer_json(exchange, {"workers": workers, "total": len(workers)})

    def _add(self, exchange: Exchange) -> None:
        registered = self._changeable(exchange.request)
        try:
            given = msgspec.json.decode(exchange.request.body, type=_Given)
        except UNREADABLE as error:
            raise RequestError(f'send {{"url": "http://host:port"}}: {error}') from error
        self._answer(exchange, registered.add(given, self._context.clock()).worker)

    def _remove(self, exchange: Exchange) -> None:
        registered = self._changeable(exchange.request)
        url = parse_qs(exchange.request.query).get("url", [""])[0].rstrip("/")
        names = sorted(one.worker for one in self._context.router.workers() if one.url == url)
        name = registered.at(url)
        if not names and not name:
            raise RequestError(f"no worker is at {url!r}: name it by ?url=", status=_NOT_FOUND)
        registered.remove(name or names[0])
        self._answer(exchange, ",".join(names) or name)

    def _one(self, exchange: Exchange) -> None:
        request = exchange.request
        name = unquote(request.path.removeprefix(f"{PATH}/"))
        if request.method != "DELETE":
            raise RequestError(f"{PATH}/{name:.80} takes DELETE", status=405)
        registered = self._changeable(request)
        beat = self._context.router.heartbeats.get(WorkerId(name))
        if not registered.has(name) and beat is None:
            raise RequestError(f"there is no worker {name:.80}", status=_NOT_FOUND)
        if beat is not None:
            name = registered.at(beat.url) or name
        registered.remove(name)
        self._answer(exchange, name)

    def _changeable(self, request: Request) -> RegisteredWorkers:
        if self._guard is not None:
            self._guard.check(request, request.path)
        if self._registered is None:
            raise RequestError(f"{PATH}: {_NONE_OF_ITS_OWN}", status=_NOT_HERE)
        return self._registered

    def _answer(self, exchange: Exchange, name: str) -> None:
        told = {"status": "accepted", "worker_id": name, "location": f"{PATH}/{name}"}
        answer_json(exchange, told, status=_ACCEPTED)
