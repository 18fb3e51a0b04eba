"""One request on its way to an origin."""

from typing import Protocol

import msgspec

from kvmesh.transport.http.upstream.connection import UpstreamConnection
from kvmesh.transport.http.upstream.messages import UpstreamFailure, UpstreamRequest, UpstreamSink


class Host(Protocol):
    """The origin, as a call needs it."""

    def connect(self, call: "UpstreamCall") -> None:
        """Open a connection for `call`."""
        ...

    def is_stale(self, connection: UpstreamConnection) -> bool:
        """Tell whether a reset means "closed while idle"."""
        ...

    def forget(self, call: "UpstreamCall") -> None:
        """Drop a cancelled call that has no connection yet."""
        ...


class UpstreamCall(msgspec.Struct, eq=False):
    """A request on its way, until its response begins. A struct, because C makes it."""

    _host: Host
    request: UpstreamRequest | None
    head: bytes
    sink: UpstreamSink | None
    _connection: UpstreamConnection | None = None
    _fresh: bool = True
    _paused: bool = False
    _resent: bool = False

    @property
    def waiting(self) -> bool:
        """Return whether the request is not yet sent, and still wanted."""
        return self._connection is None and self.sink is not None

    def cancel(self) -> None:
        """Give up: the upstream connection is closed at once. Does nothing after the end."""
        self.sink = None
        self.request = None
        if self._connection is not None:
            self._connection.cancel(self)
        else:
            self._host.forget(self)

    def pause(self) -> None:
        """Stop reading the response until `resume`; what TCP buffers is the upstream's to hold."""
        self._paused = True
        if self._connection is not None:
            self._connection.pause(self)

    def resume(self) -> None:
        """Read on."""
        self._paused = False
        if self._connection is not None:
            self._connection.resume(self)

    def send_on(self, connection: UpstreamConnection) -> None:
        """Send the request on `connection`, which is to be closed if that raises."""
        request, sink = self.request, self.sink
        assert request is not None
        assert sink is not None
        self._connection = connection
        self._fresh = connection.served == 0
        connection.begin(self, request, sink)
        if self._paused:
            connection.pause(self)

    def take(self, connection: UpstreamConnection) -> None:
        """Do as `send_on`, for a call that has waited: what that raises ends the call."""
        try:
            self.send_on(connection)
        except Exception as error:  # noqa: BLE001  the request's edge: it is told
            connection.transport.abort()
            self.crash(error)

    def crash(self, error: Exception) -> None:
        """End the call for an error of ours; never raises."""
        sink = self.sink
        self.sink = self.request = None
        if sink is not None:
            sink.crash(error)

    def failed(self, failure: UpstreamFailure) -> None:
        """Send once more if the connection was closed while idle, else tell the sink.

        An upstream that is gone when the request is sent once more may have died of it.
        """
        connection = self._connection
        self._connection = None
        if self.sink is None:
            return
        stale = (
            failure.kind == "reset"
            and not self._fresh
            and connection is not None
            and self._host.is_stale(connection)
        )
        if stale:
            self._resent = True
            self._host.connect(self)
            return
        if self._resent and failure.stage == "before_send":
            failure = msgspec.structs.replace(failure, stage="after_send", kind="reset")
        sink = self.sink
        self.sink = self.request = None
        try:
            sink.on_failure(failure)
        except Exception as error:  # noqa: BLE001  the request's edge: it is told
            sink.crash(error)
