"""Keeps the last prompts that were sent, to send them again.

They are kept in memory alone, as clients sent them, so each stays in its tenant's namespace.
Those of requests that may not go to every worker are not kept.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Final

import msgspec

from kvmesh.app.serve.one_token import SentPrompt, kept_size, sent_prompt
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.dispatch.dispatched import Dispatched
from kvmesh.core.routing.decision import UNRESTRICTED, RouteRequest, Wished
from kvmesh.core.warming.kept_prompts import Kept, KeptPrompts, Sent
from kvmesh.transport.http.server.request import Request

MOST_FRESH: Final = 256
"""Prompts that wait to be looked at; of more only the first count, a sample of the traffic. No
tenant has more of them, nor of their bytes, than there is room left.
"""

MOST_FRESH_BYTES: Final = 32 << 20
AT_ONCE: Final = 16
"""Prompts that are looked at between two turns of the event loop: a millisecond."""


class KeptRequest(msgspec.Struct, frozen=True, gc=False):
    """A request that can be sent again, for its model."""

    sent: SentPrompt
    model: str


KeptPrompt = Kept[KeptRequest]


class PromptKeeper:
    """Takes what is sent, and looks at it later, so that requests are spared the calls."""

    def __init__(self, context: RoutingContext) -> None:
        self.kept = KeptPrompts[KeptRequest]()
        self._context = context
        self._most_each = self.kept.options.most_bytes_each
        self._fresh: deque[tuple[Wished, str, Hashes, Request, bytes]] = deque()
        self._fresh_bytes = 0
        self._fresh_of: dict[str, tuple[int, int]] = {}

    def keep(self, one: Dispatched, asked: Request) -> None:
        """Take a prompt that is sent. Beyond what is looked at in time prompts are not taken: what
        is kept is a sample.
        """
        made, placed, size = one.made, one.placed, len(asked.body)
        wished: Wished | None = one.wishes if made is None else made
        if wished is None or size > self._most_each:
            return
        count, held = self._fresh_of.get(wished.tenant, (0, 0))
        if count >= MOST_FRESH - len(self._fresh):
            return
        if held + size > MOST_FRESH_BYTES - self._fresh_bytes:
            return
        if made is not None:
            self._fresh.append((made, made.model, made.hashes, asked, asked.body))
        elif placed is not None and placed.hashes is not None:
            self._fresh.append((wished, placed.model, placed.hashes, asked, asked.body))
        else:
            return
        self._fresh_bytes += size
        self._fresh_of[wished.tenant] = count + 1, held + size

    async def take_in_all(self) -> None:
        """Look at prompts that were sent, requests are served meanwhile; not for ever: more may
        come all the time.
        """
        for _ in range(0, MOST_FRESH, AT_ONCE):
            if not self.take_in(AT_ONCE):
                break
            await asyncio.sleep(0)

    def take_in(self, most: int = MOST_FRESH) -> int:
        """Look at prompts that were sent; return how many are left to be looked at."""
        size, now = self._context.scheduler.options.block_size, self._context.clock()
        for _ in range(min(most, len(self._fresh))):
            wished, model, hashes, asked, body = self._fresh.popleft()
            sent = sent_prompt(asked)
            read = not (isinstance(wished, RouteRequest) and wished.estimated)
            if sent is not None and read and wished.restriction() == UNRESTRICTED:
                kept = KeptRequest(sent._replace(body=body), model)
                what = Sent(kept, kept_size(body, hashes), wished.tenant)
                self.kept.add(hashes, what, size, now)
        if not self._fresh:
            self._fresh_bytes = 0
            self._fresh_of.clear()
        return len(self._fresh)

    async def find_all(self) -> AsyncIterator[tuple[KeptPrompt, Mapping[WorkerId, int]]]:
        """Yield each prompt with how many of its blocks workers have; requests are served
        meanwhile.
        """
        context = self._context
        for number, prompt in enumerate(tuple(self.kept.prompts())):
            if not number % AT_ONCE:
                await asyncio.sleep(0)
            yield prompt, context.scheduler.overlaps.find(prompt.hashes, context.clock()).overlaps
