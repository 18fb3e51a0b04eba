"""One engine's load on its way to the heartbeats: heard where it is published, else asked for."""

from collections.abc import Callable
from functools import partial

from kvmesh.actors.messages import WorkerLoad
from kvmesh.app.members.engine_load import load_of_figures, read_loads
from kvmesh.core.engines.facts import EngineFacts
from kvmesh.core.engines.load import LoadStream
from kvmesh.core.engines.registry import engine_of
from kvmesh.errors import CodecError, TransportError
from kvmesh.observe import get_logger
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.zmq.gauge import GaugeSubscription


class LoadFeed:
    """Calls `tell(rank, load)` for each report. A silent stream is made up for by asking."""

    def __init__(
        self, url: str, facts: EngineFacts, report: Callable[[int, WorkerLoad], None]
    ) -> None:
        self._url = url
        self._facts = facts
        self._report = report
        self._received: set[int] = set()
        self._streams: list[GaugeSubscription] = []
        self._log = get_logger(engine=url)

    def start(self) -> None:
        """Listen to the streams, on the running loop."""
        source = engine_of(self._facts.kind).load_stream
        if source is None:
            return
        for rank, endpoint in enumerate(self._facts.load_streams):
            receive = partial(self._on_payload, source, rank)
            try:
                stream = GaugeSubscription(endpoint, source.topic, receive)
            except TransportError as error:
                self._log.warning("engine load cannot be heard", error=str(error))
                continue
            self._streams.append(stream)

    def close(self) -> None:
        """Stop listening; safe to call twice."""
        for stream in self._streams:
            stream.close()
        self._streams.clear()

    async def check(self, pool: UpstreamPool) -> None:
        """Ask for the load, unless every rank was heard since the last look."""
        received, self._received = self._received, set()
        if self._streams and len(received) == len(self._facts.load_streams):
            return
        loads = await read_loads(pool, self._url, self._facts)
        for rank, load in loads.items():
            self._report(rank, load)

    def _on_payload(self, source: LoadStream, rank: int, payload: bytes) -> None:
        try:
            figures = source.decode(payload)
        except CodecError as error:
            self._log.debug("engine load is not understood", rank=rank, error=str(error))
            return
        self._received.add(rank)
        self._report(rank, load_of_figures(figures, self._facts.block_size))
