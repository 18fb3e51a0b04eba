"""Usage of several buckets as one: each bucket once, and what is missing is said."""

import msgspec

from kvmesh.app.meta.usage import merge_usage
from kvmesh.app.views.usage_page import UsageLine, UsageQuery, UsageView

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
