"""`/v1/models` of a front door: the models served, with what their engines say of each."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from kvmesh.app.front.front import answer_json
from kvmesh.bounds import shown
from kvmesh.core.engines.model_card import Card, merge_cards, read_cards
from kvmesh.errors import MODEL_NOT_FOUND, RequestError
from kvmesh.transport.http.fetch import fetch_ok
from kvmesh.transport.http.server.incoming import Incoming
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.headers import Headers

PATH: Final = "/v1/models"
FRESH_S: Final = 10.0
"""Who said what is asked again only after this long."""

PATIENCE_S: Final = 1.0
"""So long a client waits for what is not known yet."""

AT_ONCE: Final = 16
_KEYS: Final = frozenset({b"authorization", b"x-api-key"})


class ModelsPage:
    """Asks the servers behind a front door for their models, only while somebody asks for them.

    `names` are the models served, `origins` the servers to ask: of those that do not answer in time
    the fields are left out, or stay what they were, never the models.
    """

    def __init__(
        self,
        names: Callable[[], Sequence[str]],
        origins: Callable[[], Iterable[str]],
        pool: UpstreamPool,
    ) -> None:
        self._names = names
        self._origins = origins
        self._pool = pool
        self._reported: dict[str, Mapping[str, Card]] = {}
        self._asked_s: dict[str, float] = {}
        self._asking = asyncio.Lock()

    def serve(self, exchange: Incoming) -> None:
        """Answer the list, or one model of it. Raises `RequestError` 404 for one not served."""
        wanted = exchange.request.path.removeprefix(PATH).removeprefix("/")
        if wanted and wanted not in self._names():
            raise RequestError(
                f"the model {shown(wanted)} does not exist: no worker serves it",
                status=404,
                param="model",
                code=MODEL_NOT_FOUND,
            )
        if self._unasked():
            exchange.scope.start(self._ask_and_answer(exchange, wanted))
        else:
            self._answer(exchange, wanted)

    def _answer(self, exchange: Incoming, wanted: str) -> None:
        names = (wanted,) if wanted else self._names()
        cards = merge_cards(names, (self._reported[one] for one in sorted(self._reported)))
        answer_json(exchange, cards[0] if wanted else {"object": "list", "data": cards})

    def _unasked(self) -> list[str]:
        """Return whom to ask, and forget who is gone."""
        origins, now = set(self._origins()), time.monotonic()
        for gone in self._asked_s.keys() - origins:
            del self._asked_s[gone]
            self._reported.pop(gone, None)
        asked = self._asked_s
        return sorted(one for one in origins if now >= asked.get(one, -FRESH_S) + FRESH_S)

    async def _ask_and_answer(self, exchange: Incoming, wanted: str) -> None:
        headers = [one for one in exchange.request.headers if one[0] in _KEYS]
        try:
            async with asyncio.timeout(PATIENCE_S), self._asking:
                await self._ask(self._unasked(), headers)
        except TimeoutError:
            self._asked_s |= dict.fromkeys(self._unasked(), time.monotonic())
        self._answer(exchange, wanted)

    async def _ask(self, origins: Sequence[str], headers: Headers) -> None:
        gate = asyncio.Semaphore(AT_ONCE)

        async def ask(origin: str) -> None:
            async with gate:
                body = await fetch_ok(
                    self._pool, origin, PATH, timeout_s=PATIENCE_S, headers=headers
                )
            if body is not None:
                self._reported[origin] = read_cards(body)
            self._asked_s[origin] = time.monotonic()

        await asyncio.gather(*map(ask, origins))
