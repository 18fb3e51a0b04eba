"""The JetStream JSON API, as far as kvmesh needs it, with typed answers and typed errors.

nats-py's own manager drops error codes and parses times to microseconds; `created` must be kept
exactly as the server wrote it.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
import nats.errors

from kvmesh.bounds import UNREADABLE
from kvmesh.errors import TransportError
from kvmesh.observe import get_logger
from kvmesh.ports import StreamState
from kvmesh.transport.nats.link.connection import NatsConnection
from kvmesh.transport.nats.link.troubles import NO_ROOM

STREAM_NOT_FOUND: Final = 10059
MESSAGE_NOT_FOUND: Final = 10037
WRONG_LAST_SEQUENCE: Final = (10071, 10164)
TOO_LITTLE_ROOM: Final = (10028, 10047)
"""The server's memory or disk is too small for the `max_bytes` asked for."""
UNAVAILABLE: Final = (10005, 10008, 10023)
"""No suitable peers, temporarily unavailable, insufficient resources: a cluster still forming."""

NO_ANSWER: Final = "no answer, is its disk full?"
NANOSECONDS: Final = 1_000_000_000
ENSURE_TIMEOUT_S = 15.0
ENSURE_ATTEMPT_S = 2.0
RETRY_S = 0.1
RETRY_MAX_S = 1.0

T = TypeVar("T")


class ApiError(TransportError):
    """JetStream refused; `code` is its err_code, `reason` what it says without the place."""

    def __init__(self, message: str, code: int, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


class ErrorBody(msgspec.Struct, frozen=True):
    """The `error` member of an answer."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class _MaybeError(msgspec.Struct, frozen=True):
    error: ErrorBody | None = None


class Acknowledgement(msgspec.Struct, frozen=True):
    """A PubAck: the message is stored at `seq`, unless there is an `error`."""

    seq: int = 0
    duplicate: bool = False
    error: ErrorBody | None = None


class RawState(msgspec.Struct, frozen=True):
    """The `state` member of a stream's info; `subjects` only when a filter was sent."""

    messages: int = 0
    first_seq: int = 0
    last_seq: int = 0
    subjects: dict[str, int] | None = None


class StreamInfo(msgspec.Struct, frozen=True):
    """STREAM.INFO, CREATE and UPDATE. `ts` is the server's clock, RFC 3339.

    `total` is the number of subjects that match the filter, of which one answer shows 100,000.
    """

    config: dict[str, Any]
    created: str
    state: RawState
    ts: str = ""
    total: int = 0

    def to_state(self) -> StreamState:
        """Return it in the words of the port; an empty stream starts behind its last message."""
        return StreamState(
            created=self.created,
            first_sequence=max(self.state.first_seq, 1),
            last_sequence=self.state.last_seq,
            messages=self.state.messages,
        )


class StoredMessage(msgspec.Struct, frozen=True):
    """One message read from a stream's leader. `hdrs` is the raw header block."""

    subject: str
    seq: int
    time: str = ""
    data: bytes = b""
    hdrs: bytes = b""


class _MessageAnswer(msgspec.Struct, frozen=True):
    message: StoredMessage


class _PurgeAnswer(msgspec.Struct, frozen=True):
    purged: int = 0


class Ignored(msgspec.Struct, frozen=True):
    """An answer of which only "no error" matters."""


_error_decoder = msgspec.json.Decoder(_MaybeError)
_encoder = msgspec.json.Encoder()


class JetStream:
    """API calls over one connection. Every method raises `TransportError` or `ApiError`."""

    def __init__(self, connection: NatsConnection, *, timeout_s: float = 5.0) -> None:
        self.connection = connection
        self.timeout_s = timeout_s

    async def call(
        self, operation: str, body: object, answer: type[T], *, timeout_s: float | None = None
    ) -> T:
        """Return the answer of `$JS.API.<operation>`; `body` None sends an empty request."""
        reply = await self.connection.request(
            f"$JS.API.{operation}",
            b"" if body is None else _encoder.encode(body),
            timeout_s=timeout_s or self.timeout_s,
        )
        return decode_answer(operation, reply.data, answer)

    async def publish(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None
    ) -> int:
        """Store one message, return its sequence; slow (one round trip), for rare writes."""
        reply = await self.connection.request(
            subject, data, timeout_s=self.timeout_s, headers=headers
        )
        return decode_answer(subject, reply.data, Acknowledgement).seq

    async def stream_info(
        self, stream: str, *, subjects_filter: str | None = None, timeout_s: float | None = None
    ) -> StreamInfo:
        """Return config and state as the leader sees them; with a filter also the subjects."""
        body: dict[str, str | int] = {}
        subjects: dict[str, int] = {}
        if subjects_filter is not None:
            body["subjects_filter"] = subjects_filter
        while True:
            info = await self.call(
                f"STREAM.INFO.{stream}", body or None, StreamInfo, timeout_s=timeout_s
            )
            page = info.state.subjects or {}
            subjects |= page
            if not page or len(subjects) >= info.total:
                break
            body["offset"] = len(subjects)
        state = msgspec.structs.replace(info.state, subjects=subjects)
        return msgspec.structs.replace(info, state=state)

    async def ensure_stream(self, config: Mapping[str, Any]) -> StreamInfo:
        """Create the stream, or change the settings in which it differs; waits for a cluster.

        It waits for 15 s; on a patient connection as long as it takes, and says so.
        A process that may not create streams only needs the right to ask for their info: what
        exists is used as it is.
        """
        loop, patient, pause_s = asyncio.get_running_loop(), self.connection.patient, RETRY_S
        deadline_s = loop.time() + ENSURE_TIMEOUT_S
        while True:
            try:
                info = await self._ensure_stream(config)
            except TransportError as error:
                late = loop.time() > deadline_s and not patient
                if late or not self._may_pass(error):
                    raise _explained(error, config) from error
                self._report(config["name"], error)
            else:
                self.connection.waits.end()
                return info
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)

    def _may_pass(self, error: TransportError) -> bool:
        """Return whether asking again may help: JetStream that is on may lack a leader."""
        if isinstance(error.__cause__, nats.errors.NoRespondersError):
            return bool(self.connection.client.server_fact("jetstream"))
        return is_passing(error)

    def _report(self, stream: str, error: TransportError) -> None:
        if self.connection.patient:
            reason = f"waiting for JetStream at {self.connection.shown_url} to keep {stream}"
            self.connection.waits.begin("waiting for JetStream", reason, str(error))

    async def _ensure_stream(self, config: Mapping[str, Any]) -> StreamInfo:
        name = config["name"]
        try:
            info = await self.stream_info(name, timeout_s=ENSURE_ATTEMPT_S)
        except ApiError as error:
            if error.code != STREAM_NOT_FOUND:
                raise
            return await self.call(
                f"STREAM.CREATE.{name}", config, StreamInfo, timeout_s=ENSURE_ATTEMPT_S
            )
        if not self.connection.adapts_streams:
            return info
        # The server leaves out what is false, zero or empty.
        if all((info.config.get(key) or None) == (config[key] or None) for key in config):
            return info
        wished = info.config | dict(config)
        try:
            return await self.call(
                f"STREAM.UPDATE.{name}", wished, StreamInfo, timeout_s=ENSURE_ATTEMPT_S
            )
        except TransportError as error:
            # What cannot be changed (the storage type) or may not (by this user) stays as it is.
            get_logger().warning("stream keeps settings that differ", error=str(error))
            return info

    async def last_message(self, stream: str, subject: str) -> StoredMessage | None:
        """Return the newest message on `subject`, read from the leader; None when there is none."""
        body = {"last_by_subj": subject}
        try:
            answer = await self.call(f"STREAM.MSG.GET.{stream}", body, _MessageAnswer)
        except ApiError as error:
            if error.code == MESSAGE_NOT_FOUND:
                return None
            raise
        return answer.message

    async def purge(self, stream: str, body: Mapping[str, str | int]) -> int:
        """Delete messages (`{"seq": n}` keeps n and up, `{"filter": s}`), return how many."""
        return (await self.call(f"STREAM.PURGE.{stream}", body, _PurgeAnswer)).purged

    async def delete_stream(self, stream: str) -> None:
        """Delete the stream and all in it."""
        await self.call(f"STREAM.DELETE.{stream}", None, Ignored)


def decode_answer(what: str, data: bytes, answer: type[T]) -> T:
    """Return the decoded answer; raises `ApiError` for an error, `TransportError` for garbage."""
    try:
        error = _error_decoder.decode(data).error
        if error is None:
            return msgspec.json.decode(data, type=answer)
    except UNREADABLE as failure:
        raise TransportError(f"{what}: not a JetStream answer: {failure}") from failure
    raise refusal(what, error)


def refusal(what: str, error: ErrorBody) -> ApiError:
    """Return what to raise when JetStream answers `what` by `error`."""
    reason = f"{error.description} (code {error.err_code})"
    return ApiError(f"{what}: {reason}", error.err_code, reason)


def is_passing(error: TransportError) -> bool:
    """Return whether asking again may help: a cluster without a leader says so, or nothing."""
    if isinstance(error, ApiError):
        return error.code in UNAVAILABLE
    return isinstance(error.__cause__, TimeoutError)


def shortage(error: TransportError) -> str:
    """Return in words that the server has no room for a write, "" for another error.

    One whose disk is full says nothing at all: no answer may mean that.
    """
    if isinstance(error, ApiError):
        return error.reason if error.code in NO_ROOM else ""
    return NO_ANSWER if isinstance(error.__cause__, TimeoutError) else ""


def _explained(error: TransportError, config: Mapping[str, Any]) -> TransportError:
    if not isinstance(error, ApiError) or error.code not in TOO_LITTLE_ROOM:
        return error
    return ApiError(
        f"{error}: {config['name']} reserves {config.get('max_bytes')} bytes; lower "
        "--stream-max-bytes or raise the server's max_file_store",
        error.code,
    )
