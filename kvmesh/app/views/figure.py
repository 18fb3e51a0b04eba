"""What a figure is: a number's name, meaning and reading, and how an overview shows it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Generic, Literal, TypeVar

import msgspec
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from kvmesh._native import Histogram

OwnerT_contra = TypeVar("OwnerT_contra", contravariant=True)

Kind = Literal["gauge", "counter", "histogram", "summary"]
Format = Literal["count", "percent", "ms", "s", "ms_per_token"]
"""How a value is written: of a share 0..1, milliseconds or seconds, `percent`, `ms` or `s`."""

Rule = Literal["first", "sum", "max"]
"""How several values become one: the first that is known, their sum, the largest."""

Labels = tuple[str, ...]
Value = float | Histogram | tuple[int, float]
"""A number; a histogram; a summary's count and sum."""

Words = Mapping[str, Value] | Mapping[tuple[str, str], Value] | Mapping[tuple[str, ...], Value]

Reading = Value | Words | None
"""A value, or one for each word of the figure's own labels; None: nothing to show now."""

_FAMILIES: Final = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
    "summary": SummaryMetricFamily,
}


class Shown(msgspec.Struct, frozen=True):
    """How an overview shows a figure: under `key`, in the row of the worker or replica it is of.

    `dashboard` and `top` are the titles of its columns, "" for none; `narrow` is the class of a
    column that small screens leave out. `replicas` combines what several replicas say of one
    worker, the busiest first; `bucket` combines the rows of a bucket, None: the bucket has none.
    """

    key: str
    dashboard: str = ""
    top: str = ""
    format: Format = "count"
    narrow: Literal["", "p2", "p3", "p4"] = ""
    replicas: Rule = "first"
    bucket: Rule | None = None


class Figure(msgspec.Struct, Generic[OwnerT_contra], frozen=True):
    """One number, as `read` finds it in its owner.

    `metric` is its Prometheus name, of a counter without `_total`; "" for none. `text` says what
    it is, on /metrics and in the docs.
    """

    kind: Kind
    metric: str
    read: Callable[[OwnerT_contra], Reading]
    text: str
    labels: Labels = ()
    shown: Shown | None = None


class Source(msgspec.Struct, frozen=True):
    """A table together with the owners it is read from.

    `metrics` yields its figures as Prometheus reads them. `numbers` returns the shown ones by
    owner; none, unless the labels it is given are those that tell the table's owners apart.
    """

    metrics: Callable[[], Iterator[Metric]]
    numbers: Callable[[Labels], Mapping[Labels, Mapping[str, float]]]


class Table(Generic[OwnerT_contra]):
    """The figures of one kind of owner; `labels` tell the owners apart where there are several."""

    def __init__(self, *figures: Figure[OwnerT_contra], labels: Labels = ()) -> None:
        self.figures = figures
        self.labels = labels

    def of(self, find: Callable[[], OwnerT_contra]) -> Source:
        """Return the source that reads one owner, which `find` looks up each time."""
        return self.of_each(lambda: {(): find()})

    def of_each(self, find: Callable[[], Mapping[Labels, OwnerT_contra]]) -> Source:
        """Return the source that reads several owners, each under its words for `labels`."""
        return Source(lambda: self._metrics(find()), lambda labels: self._numbers(labels, find))

    def _metrics(self, owners: Mapping[Labels, OwnerT_contra]) -> Iterator[Metric]:
        for figure in self.figures:
            if not figure.metric:
                continue
            labels = (*self.labels, *figure.labels)
            family = _FAMILIES[figure.kind](figure.metric, figure.text, labels=labels)
            for names, owner in owners.items():
                _add(family, names, figure.read(owner))
            if labels or family.samples:
                yield family

    def _numbers(
        self, labels: Labels, find: Callable[[], Mapping[Labels, OwnerT_contra]]
    ) -> dict[Labels, dict[str, float]]:
        shown = [(one.shown.key, one.read) for one in self.figures if one.shown is not None]
        if labels != self.labels or not shown:
            return {}
        return {
            names: {
                key: value for key, read in shown if isinstance(value := read(owner), int | float)
            }
            for names, owner in find().items()
        }


class Sources:
    """Every source of one process: a collector of Prometheus, and what its overview reads."""

    def __init__(self, *sources: Source) -> None:
        self._sources = list(sources)

    def add(self, *sources: Source) -> None:
        """Show further figures."""
        self._sources += sources

    def collect(self) -> Iterator[Metric]:
        """Yield the figures as Prometheus reads them."""
        for source in self._sources:
            yield from source.metrics()

    def numbers(self, *labels: str) -> dict[Labels, dict[str, float]]:
        """Return the shown figures of all owners named by `labels`: of the process, by none."""
        found: dict[Labels, dict[str, float]] = {}
        for source in self._sources:
            for names, numbers in source.numbers(labels).items():
                found.setdefault(names, {}).update(numbers)
        return found


def combine(rule: Rule, values: Iterable[float | None]) -> float | None:
    """Return the values that are known as one; None when none is."""
    known = [one for one in values if one is not None]
    if not known:
        return None
    return known[0] if rule == "first" else sum(known) if rule == "sum" else max(known)


def _add(family: Metric, names: Labels, reading: Reading) -> None:
    """Add the samples of a reading to the family of its figure."""
    if isinstance(reading, Mapping):
        for words, value in reading.items():
            _add(family, (*names, *((words,) if isinstance(words, str) else words)), value)
    elif isinstance(reading, tuple):
        assert isinstance(family, SummaryMetricFamily)
        family.add_metric(names, *reading)
    elif isinstance(reading, int | float):
        assert isinstance(family, GaugeMetricFamily | CounterMetricFamily)
        family.add_metric(names, reading)
    elif reading is not None:
        assert isinstance(family, HistogramMetricFamily)
        family.add_metric(names, _buckets(reading), reading.total)


def _buckets(of: Histogram) -> list[tuple[str, float]]:
    return [
        ("+Inf" if bound == float("inf") else f"{bound:g}", float(count))
        for bound, count in of.cumulative()
    ]
