"""Which worker keeps what an id names: answers, files, batches, conversations."""

import asyncio
import re
import time
from collections.abc import Iterable
from typing import Final

import msgspec

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.bounds import UNREADABLE, MaybeName, Names
from kvmesh.core.admission.paths import ROWS, find_row
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.routing.kept_ids import KeptIds
from kvmesh.errors import TransportError
from kvmesh.transport.http.fetch import HTTP_OK, fetch
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.headers import Headers

MOST_ASKED: Final = 64
"""Engines that are asked for one id."""

MOST_SEARCHES: Final = 16
"""Ids that are looked for at a time; others are routed as if nobody kept them."""

TIMEOUT_S: Final = 2.0
TOLD_S: Final = 0.2
"""So long the news of a sibling are awaited, that may have made what is asked for just before."""

_LOOK_S: Final = 0.02
_RESPONSES: Final = "/v1/responses"
_FILES: Final = "/v1/files"
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_HOMES: Final = frozenset(row.path for row in ROWS if row.owner == "home")
MADE_AT: Final = frozenset(
    row.path for row in ROWS if "POST" in row.methods and f"{row.path}/{{}}" in _HOMES
)
"""Where engines make what has an id."""

_FILES_IN: Final = frozenset({"/v1/batches", "/v1/vector_stores"})
"""Where a JSON body may name files."""


class ResponseHolders:
    """Asks engines for what `ids` do not know. Engines keep what they made to themselves: any other
    one refuses a request that names it.
    """

    def __init__(self, ids: KeptIds) -> None:
        self.ids = ids
        self._searches = 0

    def made(self, path: str, name: str, tenant: str, worker: WorkerId) -> None:
        """Note what an answer of `path` names; an id that no request can name is not kept."""
        if path in MADE_AT and named_response(name):
            self.ids.made(f"{path}/{name}", tenant, worker, time.monotonic())

    def find(self, lookup: str) -> WorkerId | None:
        """Return the worker that keeps what is at the path `lookup`; None where that is unknown."""
        now = time.monotonic()
        self.ids.used(lookup, now)
        return self.ids.find(lookup, now)

    def owns(self, tenant: str, lookup: str) -> bool:
        """Return whether it is known that what is at that path was made for a tenant."""
        return bool(self.ids.is_owner(lookup, tenant, time.monotonic()))

    def is_foreign(self, tenant: str, lookup: str) -> bool:
        """Return whether it is known that it was made for another one."""
        return self.ids.is_owner(lookup, tenant, time.monotonic()) is False

    async def wait_owned(self, tenant: str, lookup: str) -> bool:
        """Do as `owns`, and wait for a sibling's news where nothing is known."""
        until_s = time.monotonic() + TOLD_S
        if self.ids.on_news is not None and self._searches < MOST_SEARCHES:
            self._searches += 1
            try:
                while self.ids.is_owner(lookup, tenant, now := time.monotonic()) is None:
                    if now > until_s:
                        break
                    await asyncio.sleep(_LOOK_S)
            finally:
                self._searches -= 1
        return self.owns(tenant, lookup)

    async def ask(
        self,
        pool: UpstreamPool,
        lookup: str,
        workers: Iterable[WorkerHeartbeat],
        headers: Headers,
    ) -> tuple[WorkerId | None, bool]:
        """Return the worker whose engine answers 200 at the path `lookup`, None when none does, and
        whether all workers said that they have it not.

        Another replica may have routed what made it, or this one before it was started again.
        """
        if self._searches >= MOST_SEARCHES:
            return None, False
        by_url = {one.url: one.worker for one in workers}
        asked = list(by_url.items())[:MOST_ASKED]
        self._searches += 1
        try:
            questions = (_status(pool, url, lookup, headers) for url, _ in asked)
            statuses = await asyncio.gather(*questions)
        finally:
            self._searches -= 1
        told = zip(asked, statuses, strict=True)
        holder = next((worker for (_, worker), one in told if one == HTTP_OK), None)
        if holder is not None:
            self.ids.found(lookup, holder, time.monotonic())
        whole = len(asked) == len(by_url) and min(statuses, default=0) > 0
        return holder, holder is None and whole


async def _status(pool: UpstreamPool, url: str, lookup: str, headers: Headers) -> int:
    """Return the status of an engine's answer, 0 for none and for an engine in trouble."""
    try:
        status, _ = await fetch(pool, url, lookup, timeout_s=TIMEOUT_S, headers=headers)
    except TransportError:
        return 0
    return 0 if status in {429, 503} else status


def named_response(name: object) -> str:
    """Return the id of an answer if it may be one; "" for anything else."""
    return name if isinstance(name, str) and _ID.fullmatch(name) else ""


def lookup_of_response(response: str) -> str:
    """Return the path by which an answer is looked up, "" for no answer."""
    return f"{_RESPONSES}/{response}" if response else ""


def homes_of(request: Request) -> tuple[str, ...]:
    """Return the paths by which that is looked up which a request is about: the id in its path, or
    the files that something is made of; () for none. One that ends in a slash is no id's.
    """
    path = request.path
    if path in _FILES_IN and request.method == "POST":
        return _files_of(request.body)
    row = find_row(request.method, path)
    if row is None or row.owner != "home":
        return ()
    start = row.path.partition("{}")[0]
    name = named_response(path.removeprefix(start).partition("/")[0])
    return (f"{start}{name}",)


class _Made(msgspec.Struct):
    input_file_id: MaybeName = ""
    file_ids: Names = ()


def _files_of(body: bytes) -> tuple[str, ...]:
    try:
        made = msgspec.json.decode(body, type=_Made)
    except UNREADABLE:
        return (f"{_FILES}/",)
    named = (made.input_file_id, *made.file_ids)
    return tuple(f"{_FILES}/{named_response(name)}" for name in named if name)
