"""Telling a worker to take a prompt's prefix from another worker's cache."""

from collections.abc import Mapping

import msgspec

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.terms import Brought
from kvmesh.core.engines.fetch import Source, read_access
from kvmesh.core.engines.registry import fetch_of
from kvmesh.errors import CodecError
from kvmesh.transport.http.forward.plan import Target
from kvmesh.transport.http.wire.headers import Headers

_FETCHED_FROM = b"x-kvmesh-fetch-from"


class Fetching:
    """Names the source of each attempt's own decision in its `body`, which is the client's where
    that has none. A body that names a source itself is never changed.
    """

    def __init__(self, beats: Mapping[WorkerId, WorkerHeartbeat], body: bytes) -> None:
        self._beats = beats
        self._body = body
        self._source = ""

    def name_source(self, target: Target, brought: Brought | None, request_id: str) -> Target:
        """Return an attempt's target with a body that names the source, if there is one."""
        self._source = ""
        if brought is None or brought.source is None:
            return target
        beat = self._beats.get(brought.source)
        access = None if beat is None else read_access(beat.labels)
        fetch = None if access is None else fetch_of(access.way)
        if beat is None or access is None or fetch is None:
            return target
        if fetch.body is None:
            self._source = beat.worker
            return target
        address = access.address(beat.url, fetch.port + (beat.dp_rank or 0))
        if address is None:
            return target
        try:
            body = fetch.body(self._body, Source(*address, request_id))
        except CodecError:
            return target
        self._source = beat.worker
        return msgspec.structs.replace(target, body=body)

    def let_go(self) -> Headers:
        """Keep the body no longer, since streams are long; return whose cache was named."""
        self._body = b""
        return ((_FETCHED_FROM, self._source.encode()),) if self._source else ()
