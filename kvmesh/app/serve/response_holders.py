"""Which worker keeps which answer of the responses API, for requests that go on from it."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.core.blocks.events import WorkerId
from kvmesh.transport.http.fetch import fetch_ok
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.headers import Headers

MOST_RESPONSES: Final = 1 << 16
MOST_ASKED: Final = 64
"""Engines that are asked for one answer."""

MOST_SEARCHES: Final = 16
"""Answers that are looked for at a time; others are routed as if nobody kept them."""

TIMEOUT_S: Final = 2.0
_PATH: Final = "/v1/responses/"
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
        self._holders[response] = worker
        self._holders.move_to_end(response)
        if len(self._holders) > MOST_RESPONSES:
            self._holders.popitem(last=False)

    def find(self, response: str) -> WorkerId | None:
        """Return the worker whose answer that was; None where it did not pass here."""
        return self._holders.get(response)

    async def ask(
        self,
        pool: UpstreamPool,
        response: str,
        workers: Iterable[WorkerHeartbeat],
        headers: Headers,
    ) -> WorkerId | None:
        """Return the worker whose engine says that it keeps the answer; None when none does.

        Another replica may have routed the request, or this one before it was started again.
        """
        if self._searches >= MOST_SEARCHES:
            return None
        by_url = {one.url: one.worker for one in workers}
        asked = list(by_url.items())[:MOST_ASKED]
        self._searches += 1
        try:
            path = f"{_PATH}{response}"
            questions = (
                fetch_ok(pool, url, path, timeout_s=TIMEOUT_S, headers=headers) for url, _ in asked
            )
            answers = await asyncio.gather(*questions)
        finally:
            self._searches -= 1
        holders = (worker for (_, worker), one in zip(asked, answers, strict=True) if one)
        holder = next(holders, None)
        if holder is not None:
            self.learn(response, holder)
        return holder


def named_response(name: object) -> str:
    """Return the id of an answer if it may be one; "" for anything else."""
    return name if isinstance(name, str) and _ID.fullmatch(name) else ""


def response_of(path: str) -> str:
    """Return the id of the answer that a path below /v1/responses/ is about; "" for none."""
    if not path.startswith(_PATH):
        return ""
    return named_response(path.removeprefix(_PATH).partition("/")[0])
