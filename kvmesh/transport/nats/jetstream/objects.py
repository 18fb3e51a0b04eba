"""Large objects on the layout every NATS client reads (ADR-20), faster and with timeouts.

nats-py waits for the ack of each chunk on put, and on get copies quadratically (66 s for 200 MB)
or hangs for ever when a chunk is missing. Here chunks are pipelined both ways, and every wait ends.
Source: github.com/nats-io/nats-architecture-and-design, ADR-20.
"""

import base64
import builtins
import datetime as dt
import uuid
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from kvmesh.bounds import UNREADABLE, Count, MaybeName
from kvmesh.errors import TransportError
from kvmesh.ports import ObjectInfo
from kvmesh.transport.nats.jetstream.api import NANOSECONDS, JetStream, StoredMessage, shortage
from kvmesh.transport.nats.jetstream.object_transfer import CHUNK_BYTES, Download, Upload
from kvmesh.transport.nats.link.connection import NatsConnection

DIGEST_PREFIX = "SHA-256="


class ObjectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One bucket of objects. `max_bytes` -1 is no bound; a put over it is refused."""

    bucket: str
    replicas: int = 1
    storage: Literal["file", "memory"] = "file"
    max_bytes: int = -1

    def to_config(self) -> dict[str, Any]:
        """Return the stream's configuration as the server wants it."""
        return {
            "name": f"OBJ_{self.bucket}",
            "subjects": [f"$O.{self.bucket}.C.>", f"$O.{self.bucket}.M.>"],
            "storage": self.storage,
            "num_replicas": self.replicas,
            "max_bytes": self.max_bytes,
            "discard": "new",
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            "duplicate_window": 120 * NANOSECONDS,
        }


class _ChunkOptions(msgspec.Struct, frozen=True):
    max_chunk_size: int = CHUNK_BYTES


class _Meta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What ADR-20 stores about an object; `digest` is base64url, `nuid` one word of a subject."""

    name: MaybeName
    bucket: MaybeName = ""
    nuid: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{0,64}$")] = ""
    size: Count = 0
    mtime: MaybeName = ""
    chunks: Count = 0
    digest: MaybeName = ""
    deleted: bool = False
    options: _ChunkOptions = msgspec.field(default_factory=_ChunkOptions)


class NatsObjects:
    """The `ObjectStore` of one bucket. Call `open` first."""

    def __init__(self, connection: NatsConnection, options: ObjectOptions) -> None:
        self.options = options
        self._jetstream = JetStream(connection)
        self._connection = connection
        self._stream = f"OBJ_{options.bucket}"
        self._chunks = f"$O.{options.bucket}.C."
        self._metas = f"$O.{options.bucket}.M."

    async def open(self, *, ensure: bool = True) -> None:
        """Make the bucket or adapt its settings, with `ensure`. Raises `TransportError`."""
        if ensure:
            await self._jetstream.ensure_stream(self.options.to_config())

    async def put(self, name: str, data: bytes) -> ObjectInfo:
        """Store `data`; readers see all of it or nothing, since the meta message comes last.

        Raises `TransportError`; what was sent by then is deleted now or by `delete_orphans`.
        """
        before = await self._meta(name)
        what = f"writes to {self._stream}"
        nuid = uuid.uuid4().hex
        upload = Upload(self._jetstream, f"{self._chunks}{nuid}")
        try:
            digest, chunks = await upload.send(data)
            meta = _Meta(
                name=name,
                bucket=self.options.bucket,
                nuid=nuid,
                size=len(data),
                mtime=dt.datetime.now(dt.UTC).isoformat(),
                chunks=chunks,
                digest=DIGEST_PREFIX + base64.urlsafe_b64encode(digest).decode(),
            )
            # Rollup keeps one meta message a name.
            headers = {"Nats-Rollup": "sub"}
            await self._jetstream.publish(
                self._meta_subject(name), msgspec.json.encode(meta), headers=headers
            )
        except TransportError as error:
            if self._connection.connected:
                self._connection.troubles.begin(what, shortage(error))
            await self._discard(nuid)
            raise
        self._connection.troubles.end(what)
        if before is not None:
            await self._discard(before.nuid)
        return await self.info(name)

    async def info(self, name: str) -> ObjectInfo:
        """Return the object's description. Raises `TransportError` when there is none."""
        message = await self._jetstream.last_message(self._stream, self._meta_subject(name))
        info = None if message is None else to_info(message)
        if info is None:
            raise TransportError(f"object {self.options.bucket}/{name} does not exist")
        return info

    async def get(self, name: str) -> bytes:
        """Return the object, its length and digest checked.

        Raises `TransportError` when it is absent or damaged, or no chunk comes for 5 s.
        """
        meta = await self._meta(name)
        if meta is None or meta.deleted:
            raise TransportError(f"object {self.options.bucket}/{name} does not exist")
        where = f"object {self.options.bucket}/{name}"
        download = Download(self._jetstream, self._stream, f"{self._chunks}{meta.nuid}", where)
        data, digest = await download.receive(meta.chunks, meta.size)
        if len(data) != meta.size or digest != decode_digest(meta.digest):
            raise TransportError(
                f"{where} is damaged: {len(data)} of {meta.size} bytes, or its digest differs"
            )
        return data

    async def delete(self, name: str) -> None:
        """Delete the object and its chunks; no error when absent.

        No tombstone is left: names are never reused, so tombstones would only pile up.
        """
        meta = await self._meta(name)
        if meta is not None:
            await self._jetstream.purge(self._stream, {"filter": self._meta_subject(name)})
            await self._purge_chunks(meta.nuid)

    async def list(self) -> builtins.list[ObjectInfo]:
        """Return all complete objects, by name. O(objects) requests."""
        infos = [to_info(message) for message in await self._meta_messages()]
        return sorted((info for info in infos if info is not None), key=lambda info: info.name)

    async def delete_orphans(self, older_than_s: float) -> int:
        """Delete chunks no object refers to and whose newest is old, by the server's clock.

        Returns how many objects' worth. A put under way is safe while it makes progress.
        """
        # Chunks first: an object finished between the two questions is in the second answer.
        info = await self._jetstream.stream_info(self._stream, subjects_filter=f"{self._chunks}>")
        now_s = seconds_of(info.ts)
        live = {meta.nuid for message in await self._meta_messages() if (meta := to_meta(message))}
        count = 0
        for subject in info.state.subjects or {}:
            nuid = subject[len(self._chunks) :]
            if nuid in live:
                continue
            newest = await self._jetstream.last_message(self._stream, subject)
            if newest is not None and now_s - seconds_of(newest.time) >= older_than_s:
                await self._purge_chunks(nuid)
                count += 1
        return count

    async def _meta(self, name: str) -> _Meta | None:
        message = await self._jetstream.last_message(self._stream, self._meta_subject(name))
        return None if message is None else to_meta(message)

    async def _meta_messages(self) -> builtins.list[StoredMessage]:
        info = await self._jetstream.stream_info(self._stream, subjects_filter=f"{self._metas}>")
        subjects = info.state.subjects or {}
        found = [await self._jetstream.last_message(self._stream, each) for each in subjects]
        return [message for message in found if message is not None]

    async def _discard(self, nuid: str) -> None:
        """Delete chunks nobody will read; what cannot be deleted now is an orphan for later."""
        try:
            await self._purge_chunks(nuid)
        except TransportError:
            return

    async def _purge_chunks(self, nuid: str) -> None:
        if nuid:
            await self._jetstream.purge(self._stream, {"filter": f"{self._chunks}{nuid}"})

    def _meta_subject(self, name: str) -> str:
        return self._metas + base64.urlsafe_b64encode(name.encode()).decode()


def to_meta(message: StoredMessage) -> _Meta | None:
    """Return the meta in a stored message; None when it is not one (links are not used here)."""
    try:
        return msgspec.json.decode(message.data, type=_Meta)
    except UNREADABLE:
        return None


def to_info(message: StoredMessage) -> ObjectInfo | None:
    """Return the port's description of a stored meta; None for a deleted or unreadable one."""
    meta = to_meta(message)
    if meta is None or meta.deleted:
        return None
    digest = decode_digest(meta.digest).hex()
    return ObjectInfo(meta.name, meta.size, digest, seconds_of(message.time))


def decode_digest(text: str) -> bytes:
    """Return the SHA-256 in an ADR-20 digest; b"" when it is none."""
    try:
        return base64.urlsafe_b64decode(text.removeprefix(DIGEST_PREFIX))
    except ValueError:
        return b""


def seconds_of(time: str) -> float:
    """Return seconds since 1970 of an RFC 3339 time."""
    return dt.datetime.fromisoformat(time).timestamp()
