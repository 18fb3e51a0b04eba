"""Which worker keeps what an id names: answers, files, batches, conversations."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import msgspec

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.bounds import UNREADABLE, MaybeName
from kvmesh.core.admission.paths import find_row
from kvmesh.core.blocks.events import WorkerId
from kvmesh.transport.http.fetch import fetch_ok
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.headers import Headers

MOST_RESPONSES: Final = 1 << 16
MOST_ASKED: Final = 64
"""Engines that are asked for one answer."""

MOST_SEARCHES: Final = 16
"""Answers that are looked for at a time; others are routed as if nobody kept them."""

TIMEOUT_S: Final = 2.0
_PATH: Final = "/v1/responses/"
_FILES: Final = "/v1/files/"
_BATCHES: Final = "/v1/batches"
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")


class ResponseHolders:
    """Remembers the workers whose answers passed here, the last `MOST_RESPONSES` of them. Engines
    keep answers to themselves: any other one refuses a request that goes on from it.
    """

    def __init__(self) -> None:
        self._holders: OrderedDict[str, WorkerId] = OrderedDict()
        self._searches = 0

    def learn(self, response: str, worker: WorkerId) -> None:
        """Note whose answer that was; an id that no request can name is not kept."""
        if not named_response(response):
            return
        self._keep(lookup_of_response(response), worker)

    def _keep(self, lookup: str, worker: WorkerId) -> None:
        self._holders[lookup] = worker
        self._holders.move_to_end(lookup)
        if len(self._holders) > MOST_RESPONSES:
            self._holders.popitem(last=False)

    def find(self, lookup: str) -> WorkerId | None:
        """Return the worker that keeps what is at the path `lookup`; None where that is unknown."""
        return self._holders.get(lookup)

    async def ask(
        self,
        pool: UpstreamPool,
        lookup: str,
        workers: Iterable[WorkerHeartbeat],
        headers: Headers,
    ) -> WorkerId | None:
        """Return the worker whose engine answers 200 at the path `lookup`; None when none does.

        Another replica may have routed what made it, or this one before it was started again.
        """
        if self._searches >= MOST_SEARCHES:
            return None
        by_url = {one.url: one.worker for one in workers}
        asked = list(by_url.items())[:MOST_ASKED]
        self._searches += 1
        try:
            questions = (
                fetch_ok(pool, url, lookup, timeout_s=TIMEOUT_S, headers=headers)
                for url, _ in asked
            )
            answers = await asyncio.gather(*questions)
        finally:
            self._searches -= 1
        holders = (worker for (_, worker), one in zip(asked, answers, strict=True) if one)
        holder = next(holders, None)
        if holder is not None:
            self._keep(lookup, holder)
        return holder


def named_response(name: object) -> str:
    """Return the id of an answer if it may be one; "" for anything else."""
    return name if isinstance(name, str) and _ID.fullmatch(name) else ""


def lookup_of_response(response: str) -> str:
    """Return the path by which an answer is looked up, "" for no answer."""
    return f"{_PATH}{response}" if response else ""


def home_of(request: Request) -> str:
    """Return the path by which that is looked up which a request is about: the id in its path, or
    the file that a batch is made of; "" for none.
    """
    path = request.path
    if path == _BATCHES and request.method == "POST":
        return _file_of(request.body)
    row = find_row(request.method, path)
    if row is None or row.owner != "home":
        return ""
    start = row.path.partition("{}")[0]
    name = named_response(path.removeprefix(start).partition("/")[0])
    return f"{start}{name}" if name else ""


class _Batch(msgspec.Struct):
    input_file_id: MaybeName = ""


def _file_of(body: bytes) -> str:
    try:
        name = named_response(msgspec.json.decode(body, type=_Batch).input_file_id)
    except UNREADABLE:
        return ""
    return f"{_FILES}{name}" if name else ""
