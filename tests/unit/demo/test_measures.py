from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh_lab.demo.measures import Answer, SentBefore, Window, measure, tokens_per_s

NO_WINDOW = Window(0.0, 0.0)


def answer(dialogue: int, worker: str, sent_s: float, turn: int = 0, **changes: object) -> Answer:
    values = {
        "ended_s": sent_s + 1.0,
        "ttft_s": 0.1,
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "output_tokens": 10,
    }
    return Answer(dialogue=dialogue, turn=turn, sent_s=sent_s, worker=worker, **(values | changes))  # type: ignore[arg-type]  # any field


def test_hits_and_ttft_are_those_of_the_requests_that_count() -> None:
    answers = [
        answer(0, "a", 0.0, ttft_s=0.4),
        answer(1, "b", 1.0, cached_tokens=80, sent_before=0.8, cached_before=0.5, ttft_s=0.1),
        answer(2, "b", 2.0, cached_tokens=40, sent_before=0.4, ttft_s=0.9),
        answer(3, "b", 3.0, error="http 503: full"),
    ]

    found = measure(answers, ["a", "b", "c"], NO_WINDOW)

    assert (found.requests, found.failed, found.workers) == (4, 1, 3)
    assert found.hit_rate == pytest.approx(0.4)
    assert found.ceiling == pytest.approx(0.4)
    assert found.ready == pytest.approx(0.5 / 3)
    assert (found.high_overlap, found.ttft_s) == (1, 0.1)


def test_follow_ups_count_alone_and_know_whether_they_went_back() -> None:
    answers = [
        answer(0, "a", 0.0),
        answer(1, "a", 0.5),
        answer(0, "a", 1.0, turn=1, cached_tokens=90, sent_before=0.9),
        answer(1, "b", 1.5, turn=1, cached_tokens=10, sent_before=0.9),
    ]

    found = measure(answers, [], NO_WINDOW, follow_ups=True)

    assert found.hit_rate == pytest.approx(0.5)
    assert found.same_worker == 0.5
    assert measure(answers[:2], [], NO_WINDOW).same_worker is None


def test_a_worker_is_busy_while_it_has_any_request() -> None:
    answers = [
        answer(0, "a", 0.0, ended_s=4.0),
        answer(1, "a", 1.0, ended_s=2.0),
        answer(2, "b", 5.0, ended_s=10.0),
    ]

    found = measure(answers, ["c"], NO_WINDOW)

    assert found.busy == {"a": 0.4, "b": 0.5, "c": 0.0}
    assert found.busy_spread == 0.5
    assert found.served == {"a": 220, "b": 110, "c": 0}
    assert found.served_spread == 1.0


def test_throughput_counts_what_comes_while_all_clients_are_under_way() -> None:
    answers = [
        answer(0, "a", 0.0, ttft_s=0.0, ended_s=2.0, output_tokens=20),
        answer(1, "a", 1.5, ttft_s=0.5, ended_s=4.0, output_tokens=40),
        answer(2, "a", 3.0, ttft_s=1.0, ended_s=4.0, output_tokens=1),
    ]

    assert tokens_per_s(answers, Window(1.0, 3.0)) == pytest.approx((10 + 20) / 2)
    assert tokens_per_s(answers, NO_WINDOW) == pytest.approx(61 / 4)


def test_a_prompt_was_cached_only_once_the_one_before_was_computed() -> None:
    sent = SentBefore(4)

    assert sent.add("aaaabbbbc", 0.0, 1.0) == (0.0, 0.0)
    assert sent.add("aaaabbbbd", 0.5, 2.0) == pytest.approx((8 / 9, 0.0))
    assert sent.add("aaaaxxxxe", 1.5, inf) == pytest.approx((4 / 9, 4 / 9))
    assert sent.add("", 2.0, 2.0) == (0.0, 0.0)


def test_the_last_token_of_a_prompt_is_never_cached() -> None:
    sent = SentBefore(4)
    sent.add("aaaabbbb", 0.0, 0.0)

    assert sent.add("aaaabbbb", 1.0, 1.0) == (0.5, 0.5)


@given(st.lists(st.text("ab", max_size=12), max_size=12), st.integers(1, 4))
def test_what_was_sent_before_is_the_longest_beginning_of_any_prompt(
    texts: list[str], size: int
) -> None:
    sent = SentBefore(size)
    for place, text in enumerate(texts):
        whole = max(0, len(text) - 1) // size * size
        most = max(
            (
                depth
                for depth in range(0, whole + 1, size)
                if any(one[:depth] == text[:depth] and len(one) >= depth for one in texts[:place])
            ),
            default=0,
        )

        found, ready = sent.add(text, float(place), place + 0.5)

        assert found * max(1, len(text)) == pytest.approx(most)
        assert ready == found
