"""Compare-and-set with expiry on a JetStream KV bucket, readable by the stock tools.

nats-py's own KeyValue has no expiry on update, takes the marker that follows an expiry for a live
entry, and may read from a follower; a lease needs all three right.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from kvmesh.errors import ConflictError, TransportError
from kvmesh.ports import Entry
from kvmesh.transport.nats.jetstream.api import (
    NANOSECONDS,
    WRONG_LAST_SEQUENCE,
    ApiError,
    JetStream,
    StoredMessage,
    shortage,
)
from kvmesh.transport.nats.jetstream.pull import parse_status
from kvmesh.transport.nats.link.connection import NatsConnection

MARKER_TTL_S = 10
TOMBSTONE_TTL_S = 60
TAKEOVER_ATTEMPTS = 3
REQUEST_TIMEOUT_S = 2.0
VALID_KEY = re.compile(r"[-/_=.a-zA-Z0-9]+")


class KeyValueOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One bucket, of one value a key.

    A history of more delays expiry: nats-server 2.15 drops an expired value of a bucket with
    history 5 only after the marker's 10 s, where it takes 1.00 s for a TTL of 1 s with history 1.
    """

    bucket: str
    replicas: int = 1
    storage: Literal["file", "memory"] = "file"
    max_age_s: int = 0
    max_keys: int = 0

    def to_config(self) -> dict[str, Any]:
        """Return the stream's configuration as the server wants it; `max_age_s` 0 keeps all.

        With `max_keys` the value that was written first goes where there is one more; 0: no bound.
        """
        return {
            "name": f"KV_{self.bucket}",
            "subjects": [f"$KV.{self.bucket}.>"],
            "storage": self.storage,
            "num_replicas": self.replicas,
            "max_msgs_per_subject": 1,
            "discard": "new",
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": False,
            "allow_msg_ttl": True,
            "subject_delete_marker_ttl": MARKER_TTL_S * NANOSECONDS,
            "max_age": self.max_age_s * NANOSECONDS,
            "duplicate_window": min(120, self.max_age_s or 120) * NANOSECONDS,
            **({"max_msgs": self.max_keys, "discard": "old"} if self.max_keys else {}),
        }


class NatsKeyValue:
    """The `KeyValue` of one bucket. Call `open` first.

    A write that gets no answer in 2 s raises `TransportError` and may have been done all the same:
    read the key back, and when the value is one's own, take its revision.
    """

    def __init__(self, connection: NatsConnection, options: KeyValueOptions) -> None:
        self.options = options
        self._jetstream = JetStream(connection, timeout_s=REQUEST_TIMEOUT_S)
        self._connection = connection
        self._stream = f"KV_{options.bucket}"
        self._prefix = f"$KV.{options.bucket}."

    async def open(self, *, ensure: bool = True) -> None:
        """Make the bucket or adapt its settings, with `ensure`. Raises `TransportError`."""
        if ensure:
            await self._jetstream.ensure_stream(self.options.to_config())

    async def get(self, key: str) -> Entry | None:
        """Return the entry as the leader has it; None when never written, deleted or expired.

        One that nobody wrote who may (`trust`) has an empty value: it can be written over.
        """
        message = await self._last(key)
        if message is None or is_marker(message):
            return None
        counts = self._connection.signing.admits_value(
            self._subject(key), message.hdrs, message.data, message.time
        )
        return Entry(message.data if counts else b"", message.seq)

    async def put(
        self, key: str, value: bytes, *, expected: int | None, ttl_s: int | None = None
    ) -> int:
        """Write and return the new revision; a larger revision is a valid fencing token.

        `expected` is the revision read before, or None for "no live entry"; the markers of expiry
        and deletion count as none. `ttl_s` >= 1, whole seconds, is exact to some milliseconds.
        Raises `ConflictError` when another writer was first, `TransportError` when in doubt.
        """
        headers = {} if ttl_s is None else {"Nats-TTL": f"{ttl_s}s"}
        if expected is not None:
            return await self._write(key, value, expected, headers)
        revision = 0
        for _ in range(TAKEOVER_ATTEMPTS):
            try:
                return await self._write(key, value, revision, headers)
            except ConflictError:
                message = await self._last(key)
                if message is not None and not is_marker(message):
                    raise
                revision = 0 if message is None else message.seq
        raise ConflictError(f"{self._prefix}{key}: other writers were first, several times")

    async def delete(self, key: str, *, expected: int) -> None:
        """Delete the entry with that revision. Raises `ConflictError`, `TransportError`."""
        headers = {"KV-Operation": "DEL", "Nats-TTL": f"{TOMBSTONE_TTL_S}s"}
        await self._write(key, b"", expected, headers)

    async def keys(self, prefix: str) -> Sequence[str]:
        """Return the live keys that start with `prefix`, sorted. O(keys) requests."""
        info = await self._jetstream.stream_info(self._stream, subjects_filter=f"{self._prefix}>")
        known = sorted(subject[len(self._prefix) :] for subject in info.state.subjects or {})
        wanted = [key for key in known if key.startswith(prefix)]
        entries = await asyncio.gather(*(self.get(key) for key in wanted))
        return [key for key, entry in zip(wanted, entries, strict=True) if entry is not None]

    async def _last(self, key: str) -> StoredMessage | None:
        return await self._jetstream.last_message(self._stream, self._subject(key))

    async def _write(self, key: str, value: bytes, expected: int, headers: dict[str, str]) -> int:
        guarded = headers | {"Nats-Expected-Last-Subject-Sequence": str(expected)}
        what = f"writes to {self._stream}"
        try:
            revision = await self._jetstream.publish(self._subject(key), value, guarded)
        except TransportError as error:
            if self._connection.connected:
                self._connection.troubles.begin(what, shortage(error))
            if isinstance(error, ApiError) and error.code in WRONG_LAST_SEQUENCE:
                raise ConflictError(
                    f"{self._prefix}{key} is not at revision {expected}: {error}"
                ) from error
            raise
        self._connection.troubles.end(what)
        return revision

    def _subject(self, key: str) -> str:
        if not VALID_KEY.fullmatch(key) or key[0] == "." or key[-1] == "." or ".." in key:
            raise TransportError(f"key {key!r}: use letters, digits and -_=/ in words with dots")
        return f"{self._prefix}{key}"


def is_marker(message: StoredMessage) -> bool:
    """Return whether the message says that the key holds nothing: deleted, purged or expired."""
    if not message.hdrs:
        return False
    _, _, headers = parse_status(message.hdrs)
    return headers.get("kv-operation") in ("DEL", "PURGE") or "nats-marker-reason" in headers
