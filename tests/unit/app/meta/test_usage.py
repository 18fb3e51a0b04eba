"""Usage of several buckets as one: each bucket once, and what is missing is said."""

from typing import cast

import msgspec

from kvmesh.app.front.front import Routes
from kvmesh.app.front.page_time import PageTime
from kvmesh.app.front.viewers import Viewers
from kvmesh.app.meta.usage import MetaUsage, merge_usage, read_views
from kvmesh.app.meta.view import MetaView
from kvmesh.app.views.usage_page import UsageLine, UsageQuery, UsageView
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.request import Request

ASKED = UsageQuery("model", 100.0, None, 10)


def line(name: str, requests: int, tenant: str = "") -> UsageLine:
    return UsageLine(tenant, name, requests, 0, 10 * requests, 0, requests, 5)


def view(bucket: str, requests: int, missing: str = "", router: str = "r0") -> UsageView:
    return UsageView(
        bucket=bucket,
        router=router,
        by="model",
        since=100.0,
        until=200.0 + requests,
        missing=missing,
        rows=[line("m", requests)],
        others=line("(others)", 1),
        total=line("(total)", requests + 1),
    )


def test_each_bucket_counts_once_by_the_replica_that_knows_most() -> None:
    parts = [view("a", 3), view("a", 5), view("a", 4), view("b", 2, "siblings"), view("b", 1)]

    merged = merge_usage(parts, ["a", "b"], ASKED)

    assert [(one.name, one.requests, one.prompt_tokens) for one in merged.rows] == [("m", 6, 60)]
    assert merged.total.requests == 8
    assert merged.others is not None
    assert merged.others.requests == 2
    assert (merged.missing, merged.since, merged.until) == ("", 100.0, 205.0)


def test_what_a_bucket_does_not_know_and_who_is_silent_is_said() -> None:
    merged = merge_usage([view("a", 3, "no siblings")], ["a", "b", "c"], ASKED)

    assert merged.missing == "bucket a: no siblings; no answer from b, c"
    nobody = merge_usage([], ["a"], ASKED)
    assert (nobody.missing, nobody.rows, nobody.total.requests) == ("no answer from a", [], 0)


def test_rows_are_sorted_cut_and_one_tenants_have_no_others() -> None:
    rows = [line(name, number, "t") for name, number in (("m", 1), ("n", 3), ("o", 2))]
    one = msgspec.structs.replace(view("a", 3), rows=rows, others=None)

    merged = merge_usage([one], ["a"], UsageQuery("key", 100.0, "t", 2))

    assert [row.name for row in merged.rows] == ["n", "o"]
    assert (merged.others, merged.total.tenant) == (None, "t")


def test_what_nobody_can_read_is_no_answer() -> None:
    one = view("a", 1)

    assert read_views([b"", b"{}", msgspec.json.encode(one)]) == [one]


class Silent:
    """What a page asks of the view of a mesh, which must not be asked."""

    def buckets(self) -> tuple[str, ...]:
        raise AssertionError


def test_a_page_is_answered_again_while_there_is_no_time_for_another() -> None:
    usage = MetaUsage(cast("MetaView", Silent()), Viewers(""))
    spent = iter((0.0, 100.0))
    usage._time = PageTime(lambda: 0.0, lambda: next(spent))
    usage._time.make(("by=key", None), lambda: b"kept")
    routes = Routes()
    usage.mount(routes)
    asked = Asked(Request("GET", b"/v1/usage?by=key", ()))

    routes(cast("Exchange", asked))

    assert asked.answered == (200, b"kept")


class Asked:
    def __init__(self, request: Request) -> None:
        self.request = request

    def respond(self, status: int, body: bytes) -> None:
        self.answered = status, body
