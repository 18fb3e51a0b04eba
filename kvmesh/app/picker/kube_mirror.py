"""One collection of the API server, kept as it is there: listed, watched, listed again."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Final, Generic, TypeVar

import msgspec

from kvmesh.app.picker.kube_api import GONE, MOST_OBJECTS, Event, KubeApi, Query
from kvmesh.app.picker.kube_objects import name_in
from kvmesh.bounds import MAX_TEXT
from kvmesh.errors import ApiServerError, CodecError, KvMeshError, TransportError
from kvmesh.observe import get_logger

ObjectT = TypeVar("ObjectT")

WATCH_S: Final = 60
"""Seconds a watch lasts before it is asked for anew: one that died unseen costs no more."""

PAUSE_S: Final = 1.0
PAUSE_MAX_S: Final = 30.0
ABSENT_S: Final = 60.0
"""Pause before a collection is asked for again that the API server does not have."""

NOT_FOUND: Final = 404
MOST_WRONG: Final = 64
"""Objects that cannot be read which are remembered by name; the others are only counted."""


class MirrorStatistics(msgspec.Struct, frozen=True):
    """Counts since the start; `failures` by kind: refused (the server said no) or failed."""

    lists: int
    events: int
    refused: int
    failed: int
    unreadable: int


class Mirror(Generic[ObjectT]):
    """`objects` by name, as of the last list and the events behind it.

    While the server cannot be asked they stay; `trouble` says why, "" when all is well.
    `synced`: a list was read. `absent`: the server has no such collection. An object that cannot be
    read is not there, and said in `wrong`; the others are. `changed` is called after each change.
    """

    def __init__(
        self,
        api: KubeApi,
        query: Query,
        read: Callable[[msgspec.Raw], ObjectT],
        changed: Callable[[], None],
        relist_s: float,
    ) -> None:
        self.query = query
        self.objects: dict[str, ObjectT] = {}
        self.synced = False
        self.absent = False
        self.trouble = ""
        self.wrong: dict[str, str] = {}
        self._api = api.twin()
        self._read = read
        self._changed = changed
        self._relist_s = relist_s
        self._pause_s = PAUSE_S
        self._lists = self._events = self._refused = self._failed = self._unreadable = 0
        self._rng = random.Random()  # noqa: S311  spreads load, no secret
        self._log = get_logger()

    async def run(self) -> None:
        """Follow the collection until cancelled."""
        try:
            while True:
                try:
                    await self._follow()
                except KvMeshError as error:
                    await asyncio.sleep(self._note(error))
        finally:
            await self._api.close()

    def turn_to(self, query: Query) -> None:
        """Keep what `query` asks for instead, from the next `run` on; what is known stays so long.

        Nothing is known of a query without labels that had some.
        """
        if self.query.labels and not query.labels:
            self.objects = {}
        self.query = query
        self.synced = False
        self.trouble = ""
        self.wrong.clear()

    def statistics(self) -> MirrorStatistics:
        """Return the counts."""
        return MirrorStatistics(
            self._lists, self._events, self._refused, self._failed, self._unreadable
        )

    async def _follow(self) -> None:
        """List, then watch until another list is due, or the server knows no way on."""
        version = await self._list()
        # Not all pickers at once: each looks again a little earlier than it has to.
        due_s = time.monotonic() + self._relist_s * self._rng.uniform(0.8, 1.0)
        while (left_s := due_s - time.monotonic()) > 0 and version:
            began_s = time.monotonic()
            try:
                version = await self._watch(version, max(1, min(WATCH_S, round(left_s))))
            except ApiServerError as error:
                if error.status != GONE:
                    raise
                version = ""
            if time.monotonic() - began_s < PAUSE_S:
                # A server that ends every watch at once is not asked in a tight loop.
                await asyncio.sleep(self._back_off())
            else:
                self._pause_s = PAUSE_S
        if not version:
            await asyncio.sleep(self._back_off())

    async def _list(self) -> str:
        """Take all objects; return the version to watch from, "" where the server gave none."""
        listing = await self._api.list(self.query)
        self._lists += 1
        self.wrong.clear()
        found = {name: one for data in listing.items for name, one in self._objects(data)}
        if self.trouble:
            self._log.info("API server answers again", asked=str(self.query))
        self.trouble = ""
        self.absent = False
        self.synced = True
        self.objects = found
        self._changed()
        return listing.version

    async def _watch(self, version: str, seconds: int) -> str:
        """Take changes until the watch ends; return the version to go on from."""
        async with aclosing(self._api.watch(self.query, version, seconds)) as events:
            async for event in events:
                self._events += 1
                version = event.version or version
                if event.kind != "BOOKMARK":
                    self._take(event)
        return version

    def _take(self, event: Event) -> None:
        name = name_in(event.data)
        self.objects.pop(name, None)
        self.wrong.pop(name, None)
        if event.kind != "DELETED":
            self.objects.update(self._objects(event.data))
            if len(self.objects) > MOST_OBJECTS:
                del self.objects[name]
                raise TransportError(f"watch of {self.query}: more than {MOST_OBJECTS:,} objects")
        self._changed()

    def _objects(self, data: msgspec.Raw) -> Iterator[tuple[str, ObjectT]]:
        """Yield the object under its name; nothing for one that cannot be read."""
        name = name_in(data)
        try:
            found = self._read(data)
        except CodecError as error:
            self._unreadable += 1
            if len(self.wrong) < MOST_WRONG:
                self.wrong[name] = str(error)[:MAX_TEXT]
            self._log.warning("object not read", error=self.wrong.get(name), asked=str(self.query))
            return
        if not self.query.name or name == self.query.name:
            yield name, found

    def _note(self, error: KvMeshError) -> float:
        """Say what is wrong, once; return the seconds to wait before the next try."""
        absent = isinstance(error, ApiServerError) and error.status == NOT_FOUND
        if isinstance(error, ApiServerError):
            self._refused += 1
        else:
            self._failed += 1
        said = str(error)
        if said != self.trouble:
            self.trouble = said
            level = self._log.info if absent and not self.synced else self._log.warning
            level("API server not heard, what is known stays", error=said)
        self.absent = absent
        if absent and self.objects:
            # The collection itself was removed: so were its objects.
            self.objects = {}
        self._changed()
        return ABSENT_S if absent else self._back_off()

    def _back_off(self) -> float:
        pause_s = self._pause_s * self._rng.uniform(0.5, 1.0)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        return pause_s
