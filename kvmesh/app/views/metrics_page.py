"""/metrics: what Prometheus reads of a process. Names: docs/reference/metrics.md.

Labels are members and words from a fixed list: their number is bounded by the fleet's size.
"""

import contextlib
from collections.abc import Callable, Iterator

from prometheus_client import Metric, ProcessCollector, generate_latest

from kvmesh.app.front.front import METRICS_TYPE, Routes
from kvmesh.app.front.page_time import PageTime
from kvmesh.app.process.place import Place
from kvmesh.app.process.shared_metrics import SharedMetrics
from kvmesh.app.views.figure import Source, Sources
from kvmesh.app.views.other_names import Book, Served, others_of, read_books
from kvmesh.errors import RequestError
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.wire.problem import Problem


class MetricsPage:
    """Serves the figures of all `sources`, and those of the process itself; with `?names=` the
    same by the names of others, too, whose labels tell what is `served`. `elsewhere`: a comment
    says there in whose pages those are.
    """

    def __init__(
        self,
        *sources: Source,
        served: Callable[[], Served] = Served,
        elsewhere: Callable[[], str] | None = None,
    ) -> None:
        self.sources = Sources(*sources)
        self._served = served
        self._elsewhere = elsewhere
        self._process = ProcessCollector(registry=None)
        self._time = PageTime()
        self._shared: SharedMetrics | None = None

    def mount(self, routes: Routes) -> None:
        """Serve /metrics."""
        routes.add("GET", "/metrics", self._serve)

    def _serve(self, exchange: Exchange) -> None:
        books = read_books(exchange.request.query)
        if self._shared is not None:
            exchange.scope.start(self._serve_all(exchange, self._shared, books))
            return
        page = self._own(books)
        exchange.respond(200, page, content_type=METRICS_TYPE)

    async def share(self, place: Place, stack: contextlib.AsyncExitStack) -> None:
        """Be one of several processes, each of which serves the metrics of all."""
        self._shared = SharedMetrics(place, lambda query: self._own(read_books(query)))
        await self._shared.serve(stack)

    async def _serve_all(
        self, exchange: Exchange, shared: SharedMetrics, books: frozenset[Book]
    ) -> None:
        try:
            page = await shared.page(f"names={','.join(sorted(books))}" if books else "")
        except RequestError as error:
            exchange.fail(Problem.from_error(error))
        else:
            exchange.respond(200, page, content_type=METRICS_TYPE)

    def _own(self, books: frozenset[Book]) -> bytes:
        return self._time.page(books, lambda: self._made(books))

    def _made(self, books: frozenset[Book]) -> bytes:
        page = generate_latest(_Page(self._metrics(books)))
        if books and self._elsewhere is not None:
            page += f"# names={','.join(sorted(books))}: {self._elsewhere()}\n".encode()
        return page

    def _metrics(self, books: frozenset[Book]) -> Iterator[Metric]:
        own = list(self.sources.collect())
        yield from own
        if books:
            yield from others_of(own, books, self._served())
        yield from self._process.collect()


class _Page:
    """What `generate_latest` takes: metrics that are read once."""

    def __init__(self, metrics: Iterator[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics
