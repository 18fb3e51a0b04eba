"""The simulated key-value and object stores: exact in themselves, behind a bad network."""

import hashlib

import msgspec

from kvmesh.actors.kernel import Effect, Message
from kvmesh.actors.storage import (
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
    ReadKey,
    StoreObject,
    WriteKey,
)
from tests.doubles.sim.driver import Process, Simulation

TIMEOUT_S = 2.0
"""When a caller whose request or answer got lost is told `Failed`."""

KEY_WISHES = (ReadKey, WriteKey, DeleteKey, ListKeys)
OBJECT_WISHES = ObjectWish.__args__


class StoredKey(msgspec.Struct, frozen=True):
    """One key's entry. Virtual time."""

    value: bytes
    revision: int
    expires_s: float


class SimStores:
    """Keys with compare-and-set and expiry, and immutable objects; shared by all processes.

    A request or its answer may be lost (`lose_answer` each way): the caller then gets `Failed` and
    cannot know whether it was done. An object is stored when its last part arrives: a writer that
    dies before leaves an orphan. It may be stored damaged (`spoil`).
    """

    def __init__(self, sim: Simulation) -> None:
        self.keys: dict[str, StoredKey] = {}
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.orphans: dict[str, float] = {}
        self._sim = sim
        self._revision = 0
        for kind in (*KEY_WISHES, *OBJECT_WISHES):
            sim.carriers[kind] = self._carry

    def live(self, key: str) -> StoredKey | None:
        """Return a key's entry, unless it was deleted or has expired."""
        entry = self.keys.get(key)
        return entry if entry is not None and self._sim.now < entry.expires_s else None

    def overwrite(self, key: str, value: bytes) -> None:
        """Write a value that does not expire, whatever stands there."""
        self._revision += 1
        self.keys[key] = StoredKey(value, self._revision, float("inf"))

    def _carry(self, process: Process, actor: str, effect: Effect) -> None:
        assert isinstance(effect, KeyWish | ObjectWish)
        sim, incarnation = self._sim, process.incarnation
        if isinstance(effect, StoreObject):
            self.orphans[effect.name] = sim.now

        def answer(message: Message, after_s: float) -> None:
            sim.at(after_s, lambda: sim.deliver(process, incarnation, actor, message))

        def arrive() -> None:
            if isinstance(effect, StoreObject) and process.incarnation != incarnation:
                return
            message = self._perform(effect)
            if self._is_lost(process):
                answer(Failed(effect.token, "no answer in time"), TIMEOUT_S)
            else:
                answer(message, sim.faults.delay(sim.now))

        if self._is_lost(process):
            answer(Failed(effect.token, "no answer in time"), TIMEOUT_S)
        else:
            sim.at(sim.faults.delay(sim.now), arrive)

    def _is_lost(self, process: Process) -> bool:
        sim = self._sim
        return process.is_cut_off(sim.now) or sim.strike("lose_answer", sim.faults.plan.lose_answer)

    def _perform(self, wish: KeyWish | ObjectWish) -> Message:
        if isinstance(wish, KeyWish):
            return self._perform_on_keys(wish)
        return self._perform_on_objects(wish)

    def _perform_on_keys(self, wish: KeyWish) -> Message:
        if isinstance(wish, ListKeys):
            keys = sorted(key for key in self.keys if key.startswith(wish.prefix))
            return KeysListed(wish.token, tuple(key for key in keys if self.live(key)))
        entry = self.live(wish.key)
        if isinstance(wish, ReadKey):
            if entry is None:
                return KeyRead(wish.token, None)
            return KeyRead(wish.token, entry.value, entry.revision)
        if wish.expected != (None if entry is None else entry.revision):
            return Failed(wish.token, f"{wish.key}: another writer was first", conflict=True)
        if isinstance(wish, DeleteKey):
            del self.keys[wish.key]
            return Deleted(wish.token, 1)
        self._revision += 1
        lasts_s = float("inf") if wish.ttl_s is None else float(wish.ttl_s)
        self.keys[wish.key] = StoredKey(wish.value, self._revision, self._sim.now + lasts_s)
        return KeyWritten(wish.token, self._revision)

    def _perform_on_objects(self, wish: ObjectWish) -> Message:
        if isinstance(wish, StoreObject):
            self.orphans.pop(wish.name, None)
            spoils = self._sim.strike("spoil", self._sim.faults.plan.spoil)
            data = self._sim.faults.spoil(wish.data) if spoils else wish.data
            self.objects[wish.name] = (data, self._sim.now)
            info = self._listing(wish.name)
            return ObjectStored(wish.token, info.size, info.sha256)
        if isinstance(wish, FetchObject):
            found = self.objects.get(wish.name)
            if found is None:
                return Failed(wish.token, f"no object {wish.name}")
            return ObjectFetched(wish.token, found[0])
        if isinstance(wish, DeleteObject):
            gone = self.objects.pop(wish.name, None)
            return Deleted(wish.token, 0 if gone is None else 1)
        if isinstance(wish, ListObjects):
            return ObjectsListed(wish.token, tuple(map(self._listing, sorted(self.objects))))
        old = [
            name
            for name, since_s in self.orphans.items()
            if since_s < self._sim.now - wish.older_than_s
        ]
        for name in old:
            del self.orphans[name]
        return Deleted(wish.token, len(old))

    def _listing(self, name: str) -> ObjectListing:
        data, modified_s = self.objects[name]
        return ObjectListing(name, len(data), hashlib.sha256(data).hexdigest(), modified_s)
