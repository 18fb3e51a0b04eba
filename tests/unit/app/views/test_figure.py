from collections.abc import Mapping

import pytest
from prometheus_client import Metric

from kvmesh._native import Histogram
from kvmesh.app.views.figure import (
    Figure,
    Labels,
    Reading,
    Shown,
    Source,
    Sources,
    Table,
)


class Owner:
    def __init__(self, reading: Reading) -> None:
        self.reading = reading


def samples(source: Source) -> list[tuple[str, dict[str, str], float]]:
    return [
        (one.name, one.labels, one.value) for metric in source.metrics() for one in metric.samples
    ]


def test_a_number_is_a_sample_and_bools_are_0_and_1() -> None:
    table = Table[Owner](Figure("gauge", "kvmesh_on", lambda one: one.reading, "Whether."))

    (metric,) = table.of(lambda: Owner(True)).metrics()

    assert (metric.name, metric.type, metric.documentation) == ("kvmesh_on", "gauge", "Whether.")
    assert samples(table.of(lambda: Owner(True))) == [("kvmesh_on", {}, 1.0)]


def test_words_of_the_figure_stand_behind_those_of_its_owner() -> None:
    table = Table[Owner](
        Figure("counter", "kvmesh_ends", lambda one: one.reading, "Ends.", ("how",)),
        labels=("worker",),
    )
    owners: Mapping[Labels, Owner] = {
        ("w0",): Owner({"cut": 1, "done": 2}),
        ("w1",): Owner({"cut": 3}),
    }

    found = samples(table.of_each(lambda: owners))

    assert found == [
        ("kvmesh_ends_total", {"worker": "w0", "how": "cut"}, 1),
        ("kvmesh_ends_total", {"worker": "w0", "how": "done"}, 2),
        ("kvmesh_ends_total", {"worker": "w1", "how": "cut"}, 3),
    ]


def test_a_histogram_and_a_summary_have_their_sums() -> None:
    times = Histogram((0.5, 1.0))
    times.observe(0.75)
    table = Table[Owner](
        Figure("histogram", "x", lambda one: one.reading, "X."),
        Figure("summary", "y", lambda _: (3, 6.0), "Y."),
    )

    found = samples(table.of(lambda: Owner(times)))

    assert found == [
        ("x_bucket", {"le": "0.5"}, 0),
        ("x_bucket", {"le": "1"}, 1),
        ("x_bucket", {"le": "+Inf"}, 1),
        ("x_count", {}, 1),
        ("x_sum", {}, 0.75),
        ("y_count", {}, 3),
        ("y_sum", {}, 6.0),
    ]


def test_what_cannot_be_read_yet_is_left_out_and_labelled_figures_keep_their_head() -> None:
    table = Table[Owner](Figure("gauge", "x", lambda one: one.reading, "X."))
    by_worker = Table[Owner](Figure("gauge", "x", lambda _: 1.0, "X."), labels=("worker",))

    heads: list[Metric] = list(by_worker.of_each(dict).metrics())

    assert list(table.of(lambda: Owner(None)).metrics()) == []
    assert [(one.name, one.samples) for one in heads] == [("x", [])]


def test_numbers_are_the_shown_figures_by_what_names_their_owners() -> None:
    replica = Table[Owner](
        Figure("gauge", "x", lambda one: one.reading, "X.", shown=Shown("x")),
        Figure("gauge", "y", lambda one: one.reading, "Y."),
        Figure("gauge", "", lambda _: None, "Not known.", shown=Shown("z")),
    )
    worker = Table[Owner](
        Figure("gauge", "", lambda one: one.reading, "V.", shown=Shown("v")), labels=("worker",)
    )
    sources = Sources(replica.of(lambda: Owner(4)))
    sources.add(worker.of_each(lambda: {("w0",): Owner(5), ("w1",): Owner(6)}))

    assert sources.numbers() == {(): {"x": 4}}
    assert sources.numbers("worker") == {("w0",): {"v": 5}, ("w1",): {"v": 6}}
    assert [one.name for one in sources.collect()] == ["x", "y"]


def test_an_owner_nobody_is_shown_anything_of_is_not_looked_up() -> None:
    table = Table[Owner](Figure("gauge", "x", lambda one: one.reading, "X."))

    def find() -> Owner:
        pytest.fail("looked up")

    assert Sources(table.of(find)).numbers() == {}
