"""What is asked of the page of usage, and refused."""

import pytest

from kvmesh.app.views.usage_page import (
    MOST_ROWS_SHOWN,
    SHOWN,
    UsageQuery,
    read_query,
    read_since,
    view_usage,
)
from kvmesh.core.admission.usage import Consumer, UsageSums
from kvmesh.core.admission.usage_book import UsageBook
from kvmesh.errors import RequestError

NOW = 1_764_028_805.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("minute", NOW - 5),
        ("hour", NOW - 5),
        ("day", NOW - 5),
        ("90m", NOW - 5400),
        ("24h", NOW - 86_400),
        ("7d", NOW - 7 * 86_400),
        ("99999d", 764_028_805.0),
        ("1764000000", 1_764_000_000.0),
        ("1764000000.5", 1_764_000_000.5),
        ("2025-11-24T16:00Z", 1_764_000_000.0),
        ("2025-11-24T16:00", 1_764_000_000.0),
        ("2025-11-24T18:00+02:00", 1_764_000_000.0),
        ("2025-11-24T18:00 02:00", 1_764_000_000.0),
        ("1969-01-01", 0.0),
    ],
)
def test_a_time_is_said_in_several_ways(text: str, expected: float) -> None:
    assert read_since(text, NOW) == expected


@pytest.mark.parametrize(
    "text", ["", "yesterday", "1e25", "-1", "٣h", "nan", "9999999d", "h" * 999]
)
def test_a_time_that_is_none_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(RequestError, match="use minute, hour or day"):
        read_since(text, NOW)


def test_a_query_has_defaults_and_bounds() -> None:
    assert read_query("", NOW) == UsageQuery("tenant", NOW - 5, None, SHOWN)
    asked = read_query("by=session&since=1h&tenant=t&limit=99999999", NOW)
    assert asked == UsageQuery("session", NOW - 3600, "t", MOST_ROWS_SHOWN)
    assert read_query("", NOW, "t").tenant == "t"
    assert read_query("tenant=t", NOW, "t").tenant == "t"


@pytest.mark.parametrize(
    ("query", "words", "status"),
    [
        ("by=colour", "by='colour': use one of tenant, key, model", 400),
        ("limit=0", "limit='0': use a whole number", 400),
        ("limit=1e25", "limit='1e25'", 400),
        ("tenant=u", "own tenant's usage, 't'", 403),
    ],
)
def test_what_cannot_be_answered_is_refused(query: str, words: str, status: int) -> None:
    with pytest.raises(RequestError, match=words) as refused:
        read_query(query, NOW, "t")

    assert refused.value.status == status


def test_a_view_has_rows_by_tokens_and_says_what_is_missing() -> None:
    book = UsageBook("b", "r0", 1)
    for tenant, tokens in (("t", 5), ("u", 9), ("v", 1)):
        book.count(Consumer(tenant), UsageSums(1, 0, tokens, 0, 0, 3))
    book.flush(NOW)
    book.missing = "what siblings served"

    view = view_usage(book, UsageQuery("tenant", NOW - 5, None, 2), NOW)

    assert [one.name for one in view.rows] == ["u", "t"]
    assert (view.total.requests, view.total.prompt_tokens, view.total.name) == (3, 15, "(total)")
    assert (view.bucket, view.router, view.missing) == ("b", "r0", "what siblings served")
    assert (view.since, view.until) == (NOW - 5, NOW)
    assert view.others is not None
    assert view.others.requests == 0
    assert view_usage(book, UsageQuery("key", NOW, "t", 2), NOW).others is None
