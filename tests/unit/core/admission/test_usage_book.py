"""The book of a replica: batches, what is kept for the record, what siblings tell."""

import json

import msgspec

from kvmesh.core.admission.usage import MOST_BATCHED, Consumer, UsageBatch, UsageSums
from kvmesh.core.admission.usage_book import (
    MOST_TOTALS,
    MOST_UNSENT,
    UsageBook,
    summed,
)

NOW = 1_764_000_000.0


def used(book: UsageBook, tenant: str = "t", requests: int = 1) -> None:
    book.count(Consumer(tenant, model="m"), UsageSums(requests, 0, 10, 4, 2, 7))


def test_bounds_are_these() -> None:
    assert (MOST_UNSENT, MOST_TOTALS, MOST_BATCHED) == (512, 64, 256)


def test_a_batch_has_an_id_times_and_a_row_for_each_consumer() -> None:
    book = UsageBook("b", "r0", 7)
    book.keep_unsent()
    used(book)
    used(book)
    used(book, "u")
    book.flush(NOW)
    used(book)
    book.flush(NOW + 1.0)
    book.flush(NOW + 2.0)

    first, second = (json.loads(one.data) for one in book.unsent.values())
    assert first["id"] == "b/r0-7-1"
    assert second["id"] == "b/r0-7-2"
    assert (second["since"], second["until"]) == (NOW, NOW + 1.0)
    assert first["rows"][0] == {
        "who": {"tenant": "t", "key": "", "model": "m", "session": "", "program": ""},
        "usage": {
            "requests": 2,
            "errors": 0,
            "prompt_tokens": 20,
            "cached_tokens": 8,
            "output_tokens": 4,
            "engine_ms": 14,
        },
    }
    assert (first["bucket"], first["router"], len(first["rows"])) == ("b", "r0", 2)


def test_without_a_record_nothing_is_kept_for_it() -> None:
    book = UsageBook("b", "r0", 7)
    used(book)
    book.flush(NOW)

    assert not book.unsent
    assert book.warnings() == ()
    assert summed(book.windows.since(NOW, NOW), "model", None, NOW).total.requests == 1


def test_what_is_not_stored_is_bounded_and_its_loss_counted_and_told() -> None:
    book = UsageBook("b", "r0", 7)
    book.keep_unsent()
    for number in range(MOST_UNSENT + 3):
        used(book, requests=2)
        book.flush(NOW + number)

    counts = book.statistics()
    assert (counts.lost_requests, counts.unsent) == (6, 2 * MOST_UNSENT)
    assert counts.batches == MOST_UNSENT + 3
    assert book.warnings() == ("usage of 6 requests is not recorded: its stream was away",)


def test_many_consumers_make_several_batches() -> None:
    book = UsageBook("b", "r0", 7)
    book.keep_unsent()
    for number in range(MOST_BATCHED + 1):
        used(book, f"t{number}")
    book.flush(NOW)

    assert [one.requests for one in book.unsent.values()] == [MOST_BATCHED, 1]


def test_what_cannot_be_read_is_refused_and_counted() -> None:
    book = UsageBook("b", "r0", 7)
    good = UsageBatch("b/r1-1-1", "b", "r1", NOW, NOW, ())

    assert book.receive("r1", b"{", NOW)
    assert book.receive("r1", msgspec.json.encode({"id": "x"}), NOW)
    assert book.receive("r1", msgspec.json.encode(good).replace(b"[]", b"[1]"), NOW)
    assert book.receive("r1", msgspec.json.encode(good), NOW) == ""
    told = book.receive("r2", msgspec.json.encode(good), NOW)
    assert told == "'r2' tells of what 'r1' served"
    assert (book.statistics().refused, book.statistics().received) == (4, 1)


def test_what_it_has_counted_itself_is_not_counted_again() -> None:
    book = UsageBook("b", "r0", 7)
    book.keep_unsent()
    used(book)
    book.flush(NOW)

    assert book.receive("r0", next(iter(book.unsent.values())).data, NOW) == ""
    assert book.statistics().received == 0


def test_what_a_life_before_this_one_stored_counts() -> None:
    before, book = UsageBook("b", "r0", 6), UsageBook("b", "r0", 7)
    seen: list[UsageBatch] = []
    book.on_received = seen.append
    before.keep_unsent()
    used(before)
    before.flush(NOW)
    used(book)
    book.flush(NOW)

    book.receive("r0", next(iter(before.unsent.values())).data, NOW)

    assert summed(book.windows.since(NOW, NOW), "tenant", None, NOW).total.requests == 2
    assert [one.id for one in seen] == ["b/r0-6-1"]


def test_named_tenants_have_sums_of_their_own_and_the_rest_one() -> None:
    book = UsageBook("b", "r0", 7, ["u", "t"])
    for tenant in ("t", "x", "y"):
        used(book, tenant)

    assert {name: sums.requests for name, sums in book.totals.items()} == {
        "t": 1,
        "u": 0,
        "other": 2,
    }
    many = UsageBook("b", "r0", 7, map(str, range(MOST_TOTALS + 5)))
    assert len(many.totals) == MOST_TOTALS + 1


def test_sums_of_one_tenant_and_of_all() -> None:
    book = UsageBook("b", "r0", 7)
    used(book)
    used(book, "u", 3)
    book.flush(NOW)
    windows = book.windows.since(NOW, NOW)

    all_ = summed(windows, "model", None, NOW)
    assert [(owner, name, sums.requests) for owner, name, sums in all_.rows] == [("", "m", 4)]
    own = summed(windows, "model", "t", NOW)
    assert [(owner, name, sums.requests) for owner, name, sums in own.rows] == [("t", "m", 1)]
    assert (own.total.requests, own.others) == (1, None)
    assert summed([], "tenant", None, NOW).since == NOW
