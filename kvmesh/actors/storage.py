"""Wishes about shared storage, and their answers: keys with compare-and-set, objects, the journal.

Each wish carries a `token` that comes back in its one answer, or in `Failed`. After `Failed` with
`conflict` False the outcome is unknown: the write may have happened.
"""

from typing import Final

import msgspec

from kvmesh.actors.kernel import Effect, Message


class ReadKey(Effect, frozen=True):
    """Read a key; answered by `KeyRead`."""

    key: str
    token: int


class WriteKey(Effect, frozen=True):
    """Write a key if its revision is still `expected` (None: no live entry); `KeyWritten`.

    It expires after `ttl_s` seconds, None never.
    """

    key: str
    value: bytes
    expected: int | None
    token: int
    ttl_s: int | None = None


class DeleteKey(Effect, frozen=True):
    """Delete a key if its revision is still `expected`; `Deleted`."""

    key: str
    expected: int
    token: int


class ListKeys(Effect, frozen=True):
    """List the live keys that start with `prefix`; `KeysListed`."""

    prefix: str
    token: int


class StoreObject(Effect, frozen=True):
    """Store an object under a name never used before; `ObjectStored`."""

    name: str
    data: bytes
    token: int


class FetchObject(Effect, frozen=True):
    """Read an object, its digest checked; `ObjectFetched`."""

    name: str
    token: int


class DeleteObject(Effect, frozen=True):
    """Delete an object; `Deleted`, also when there is none."""

    name: str
    token: int


class ListObjects(Effect, frozen=True):
    """List all complete objects; `ObjectsListed`."""

    token: int


class DeleteOrphans(Effect, frozen=True):
    """Delete what interrupted writes left, if older than `older_than_s`; `Deleted`."""

    older_than_s: float
    token: int


class PurgeJournal(Effect, frozen=True):
    """Delete the journal's sequences <= `up_to`; `Deleted`."""

    up_to: int
    token: int


class OpenTail(Effect, frozen=True):
    """(Re)start this process's journal tail behind sequence `after` of the stream `created`."""

    after: int
    created: str


class KeyRead(Message, frozen=True):
    """A key's value and revision; None when there is no live entry."""

    token: int
    value: bytes | None
    revision: int = 0


class KeyWritten(Message, frozen=True):
    """A key was written; `revision` is larger than every one before."""

    token: int
    revision: int


class KeysListed(Message, frozen=True):
    """The keys that were asked for, sorted."""

    token: int
    keys: tuple[str, ...]


class ObjectStored(Message, frozen=True):
    """An object is stored whole."""

    token: int
    size: int
    sha256: str


class ObjectFetched(Message, frozen=True):
    """An object's bytes."""

    token: int
    data: bytes


class ObjectListing(msgspec.Struct, frozen=True):
    """One stored object. `modified_s` is seconds since 1970, UTC."""

    name: str
    size: int
    sha256: str
    modified_s: float


class ObjectsListed(Message, frozen=True):
    """The objects that are stored whole, sorted by name."""

    token: int
    objects: tuple[ObjectListing, ...]


class Deleted(Message, frozen=True):
    """Something was deleted; `count` things, where counted."""

    token: int
    count: int = 0


class Failed(Message, frozen=True):
    """A wish was refused (`conflict`: another writer was first) or its outcome is unknown."""

    token: int
    reason: str
    conflict: bool = False


KeyWish = ReadKey | WriteKey | DeleteKey | ListKeys
ObjectWish = StoreObject | FetchObject | DeleteObject | ListObjects | DeleteOrphans
StorageWish = KeyWish | ObjectWish | PurgeJournal

STORAGE_WISHES: Final[tuple[type[StorageWish], ...]] = (
    ReadKey,
    WriteKey,
    DeleteKey,
    ListKeys,
    StoreObject,
    FetchObject,
    DeleteObject,
    ListObjects,
    DeleteOrphans,
    PurgeJournal,
)
