"""What a request used, by how it ended."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvmesh._native import Head
from kvmesh.app.serve.routing_context import Ended
from kvmesh.app.serve.usage_meter import consumer_of, meter, used_by
from kvmesh.core.admission.usage import MOST_SHOWN, Consumer, UsageSums
from kvmesh.core.admission.usage_book import UsageBook, summed
from kvmesh.core.engines.sse import Usage

NOW = 1_764_000_000.0


def record(usage: Usage | None = None, **more: Any) -> Any:
    known = {
        "reported": usage,
        "output_tokens": 6,
        "prompt_tokens": 90,
        "overlap_blocks": 2,
        "block_size": 16,
        "estimated": False,
        "decided_s": 1.0,
        "first_token_s": 1.5,
        "ended_s": 2.5,
    }
    return SimpleNamespace(**(known | more))


def dispatched(**more: Any) -> Any:
    return SimpleNamespace(**({"wishes": None, "made": None, "turn": None} | more))


def asked(*headers: tuple[bytes, bytes]) -> Head:
    return Head(headers)


TOLD = Usage(prompt_tokens=100, completion_tokens=11, cached_tokens=60)


@pytest.mark.parametrize(
    ("found", "kind", "status", "passed", "expected"),
    [
        (record(TOLD), "finished", 200, None, UsageSums(1, 0, 100, 60, 11, 1500)),
        (record(Usage(100, 11)), "finished", 200, None, UsageSums(1, 0, 100, 32, 11, 1500)),
        (record(Usage()), "finished", 200, None, UsageSums(1, 0, 90, 32, 6, 1500)),
        (record(), "client_gone", 200, None, UsageSums(1, 0, 90, 32, 6, 1500)),
        (record(), "cut", 200, None, UsageSums(1, 1, 90, 32, 6, 1500)),
        (record(estimated=True), "finished", 200, None, UsageSums(1, 0, 0, 0, 6, 1500)),
        (record(first_token_s=None), "client_gone", 0, None, UsageSums(1, 0, 0, 0, 0, 1500)),
        (record(first_token_s=None), "failed", 502, None, UsageSums(1, 1, 0, 0, 0, 1500)),
        (record(first_token_s=None, ended_s=None), "refused", 429, None, UsageSums(1, 1)),
        (record(TOLD), "finished", 200, 4, UsageSums(1, 0, 0, 0, 7, 1500)),
        (None, "refused", 503, None, UsageSums(1, 1)),
    ],
)
def test_what_counts_is_the_engines_word_or_what_was_passed_on(
    found: Any, kind: str, status: int, passed: int | None, expected: UsageSums
) -> None:
    assert used_by(found, kind, status, passed) == expected


def test_a_consumer_is_named_by_key_session_and_program() -> None:
    turn = SimpleNamespace(agent="a" * 32, program="p" * 32)
    by_header = dispatched(wishes=SimpleNamespace(session="s" * 32))
    key = asked((b"x-kvmesh-key", b"ann's"))

    assert consumer_of("kitchen", "m", by_header, key) == Consumer(
        "kitchen", "ann's", "m", "s" * 32
    )
    both = dispatched(made=SimpleNamespace(session=""), turn=turn)
    assert consumer_of("", "m", both, asked()) == Consumer("", "", "m", "a" * 32, "p" * 32)
    long = consumer_of("t" * 500, "m" * 500, dispatched(), asked((b"x-kvmesh-key", b"k" * 500)))
    assert {len(long.tenant), len(long.model), len(long.key)} == {MOST_SHOWN}


def test_requests_are_counted_each_once() -> None:
    book = UsageBook("b", "r", 1)
    one: Ended = (record(TOLD), "m", "t", "finished", 200, dispatched(), asked(), None)

    told: list[int] = []
    failed = cast("Ended", (None, *one[1:3], "refused", 503, *one[5:]))
    meter(book, [one, one, failed], lambda _, usage: told.append(usage.tokens))
    book.flush(NOW)

    found = summed(book.windows.since(NOW, NOW), "tenant", None, NOW)
    assert found.rows == [("t", "t", UsageSums(3, 1, 200, 120, 22, 3000))]
    assert told == [111, 111, 0]
