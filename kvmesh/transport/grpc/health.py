"""`grpc.health.v1.Health`: Check and Watch."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from kvmesh.tasks import guarded
from kvmesh.transport.grpc.session_events import INVALID_ARGUMENT, NOT_FOUND, UNAVAILABLE
from kvmesh.transport.grpc.stream import GrpcStream

CHECK: Final = "/grpc.health.v1.Health/Check"
WATCH: Final = "/grpc.health.v1.Health/Watch"
SERVING: Final = 1
NOT_SERVING: Final = 2
SERVICE_UNKNOWN: Final = 3
_LOOK_S: Final = 0.25
_TEXT_TAG: Final = 0x0A


class HealthService:
    """Answers whether services serve, by what `state` says of a name ("" is the whole server).

    `state` returns None for a service it does not know: Check is answered NOT_FOUND, Watch is told
    SERVICE_UNKNOWN. Watchers are told of a change within 0.25 s, or at once by `refresh`.
    """

    def __init__(self, state: Callable[[str], bool | None]) -> None:
        self._state = state
        self._watchers: dict[GrpcStream, tuple[str, int]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def routes(self) -> Mapping[str, Callable[[GrpcStream], None]]:
        """Return the routes of a `GrpcServer`."""
        return {CHECK: self._check, WATCH: self._watch}

    def refresh(self) -> None:
        """Tell the watchers what has changed."""
        for stream, (service, reported) in list(self._watchers.items()):
            status = self._status(service)
            if status != reported:
                self._watchers[stream] = (service, status)
                stream.send(_answer(status))

    def close(self) -> None:
        """End all watches: a server that drains would wait for them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for stream in self._watchers:
            stream.finish(status=UNAVAILABLE, text="this server ends")
        self._watchers.clear()

    def _status(self, service: str) -> int:
        serves = self._state(service)
        if serves is None:
            return SERVICE_UNKNOWN
        return SERVING if serves else NOT_SERVING

    def _check(self, stream: GrpcStream) -> None:
        def ask(message: bytes) -> None:
            service = read_service(message)
            if service is None:
                stream.finish(status=INVALID_ARGUMENT, text="not a HealthCheckRequest")
                return
            status = self._status(service)
            if status == SERVICE_UNKNOWN:
                stream.finish(status=NOT_FOUND, text=f"unknown service {service[:200]}")
            else:
                stream.finish(_answer(status))

        stream.on_message = ask
        stream.on_half_close = partial(_end_empty, stream)

    def _watch(self, stream: GrpcStream) -> None:
        def ask(message: bytes) -> None:
            service = read_service(message)
            if service is None or stream in self._watchers:
                self._watchers.pop(stream, None)
                stream.finish(status=INVALID_ARGUMENT, text="one HealthCheckRequest is read")
                return
            status = self._status(service)
            self._watchers[stream] = (service, status)
            stream.send(_answer(status))
            self._check_later()

        def leave(_: int) -> None:
            self._watchers.pop(stream, None)

        stream.on_message = ask
        stream.on_reset = leave

    def _check_later(self) -> None:
        if self._timer is None and self._watchers:
            self._timer = asyncio.get_running_loop().call_later(
                _LOOK_S, guarded("health", self._refresh)
            )

    def _refresh(self) -> None:
        self._timer = None
        try:
            self.refresh()
        finally:
            self._check_later()


def _end_empty(stream: GrpcStream) -> None:
    stream.finish(status=INVALID_ARGUMENT, text="no HealthCheckRequest was sent")


def _answer(status: int) -> bytes:
    return bytes((0x08, status))


def read_service(message: bytes) -> str | None:
    """Return the field `service` of a HealthCheckRequest, None where the bytes are none.

    Names are shorter than 128 bytes.
    """
    if not message:
        return ""
    if message[0] != _TEXT_TAG or len(message) < 2 or message[1] > 0x7F:  # noqa: PLR2004
        return None
    end = 2 + message[1]
    try:
        return message[2:end].decode() if len(message) == end else None
    except UnicodeDecodeError:
        return None
