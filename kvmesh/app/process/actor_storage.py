"""Carries the storage effects of actors out on real stores."""

import asyncio

from kvmesh.actors.kernel import Effect, Message
from kvmesh.actors.storage import (
    STORAGE_WISHES,
    Deleted,
    DeleteKey,
    DeleteObject,
    Failed,
    FetchObject,
    KeyRead,
    KeysListed,
    KeyWish,
    KeyWritten,
    ListKeys,
    ListObjects,
    ObjectFetched,
    ObjectListing,
    ObjectsListed,
    ObjectStored,
    ObjectWish,
    PurgeJournal,
    ReadKey,
    StorageWish,
    StoreObject,
)
from kvmesh.app.process.aio import AioDriver
from kvmesh.errors import ConflictError, TransportError
from kvmesh.ports import Journal, KeyValue, ObjectStore
from kvmesh.tasks import Jobs, report


class StorageCarrier:
    """One task a wish; its result, or `Failed`, goes back to the actor that wished.

    At most `in_flight` wishes run at once; the others wait their turn.
    """

    def __init__(
        self,
        driver: AioDriver,
        keys: KeyValue,
        objects: ObjectStore,
        journal: Journal,
        *,
        in_flight: int = 32,
    ) -> None:
        self._driver = driver
        self._keys = keys
        self._objects = objects
        self._journal = journal
        self._slots = asyncio.Semaphore(in_flight)
        self._jobs = Jobs("storage")
        for kind in STORAGE_WISHES:
            driver.carry(kind, self._carry)

    async def close(self) -> None:
        """Give up everything under way."""
        await self._jobs.close()

    def _carry(self, actor: str, effect: Effect) -> None:
        assert isinstance(effect, StorageWish)
        self._jobs.start(self._serve(actor, effect))

    async def _serve(self, actor: str, wish: StorageWish) -> None:
        async with self._slots:
            try:
                answer = await self._perform(wish)
            except ConflictError as error:
                answer = Failed(wish.token, str(error), conflict=True)
            except TransportError as error:
                answer = Failed(wish.token, str(error))
            except Exception as error:  # noqa: BLE001  the actor must not wait for ever
                report("storage", error, detail=f"{type(wish).__name__} failed")
                answer = Failed(wish.token, repr(error))
        self._driver.answer(actor, answer)

    async def _perform(self, wish: StorageWish) -> Message:
        if isinstance(wish, KeyWish):
            return await self._perform_on_keys(wish)
        if isinstance(wish, PurgeJournal):
            return Deleted(wish.token, await self._journal.purge(wish.up_to))
        return await self._perform_on_objects(wish)

    async def _perform_on_keys(self, wish: KeyWish) -> Message:
        if isinstance(wish, ReadKey):
            entry = await self._keys.get(wish.key)
            if entry is None:
                return KeyRead(wish.token, None)
            return KeyRead(wish.token, entry.value, entry.revision)
        if isinstance(wish, ListKeys):
            return KeysListed(wish.token, tuple(sorted(await self._keys.keys(wish.prefix))))
        if isinstance(wish, DeleteKey):
            await self._keys.delete(wish.key, expected=wish.expected)
            return Deleted(wish.token, 1)
        revision = await self._keys.put(
            wish.key, wish.value, expected=wish.expected, ttl_s=wish.ttl_s
        )
        return KeyWritten(wish.token, revision)

    async def _perform_on_objects(self, wish: ObjectWish) -> Message:
        if isinstance(wish, StoreObject):
            info = await self._objects.put(wish.name, wish.data)
            return ObjectStored(wish.token, info.size, info.sha256)
        if isinstance(wish, FetchObject):
            return ObjectFetched(wish.token, await self._objects.get(wish.name))
        if isinstance(wish, DeleteObject):
            await self._objects.delete(wish.name)
            return Deleted(wish.token, 1)
        if isinstance(wish, ListObjects):
            found = sorted(await self._objects.list(), key=lambda one: one.name)
            listed = (
                ObjectListing(one.name, one.size, one.sha256, one.modified_s) for one in found
            )
            return ObjectsListed(wish.token, tuple(listed))
        return Deleted(wish.token, await self._objects.delete_orphans(wish.older_than_s))
