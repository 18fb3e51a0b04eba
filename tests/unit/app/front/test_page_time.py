from collections.abc import Callable
from typing import cast

import pytest

from kvmesh.app.front.page_time import BURST_S, MAX_KEPT, MIN_AGE_S, SHARE, PageTime
from kvmesh.errors import RequestError
from kvmesh.transport.http.server.exchange import Exchange


class Clock:
    """Time, and the processor time that pages take."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.spent_s = 0.0
        self.made = 0
        self.pages = PageTime(lambda: self.now_s, lambda: self.spent_s)

    def ask(self, key: object = "", cost_s: float = 0.01) -> bytes:
        def page() -> bytes:
            self.made += 1
            self.spent_s += cost_s
            return b"%d" % self.made

        return self.pages.page(key, page)


def test_pages_are_made_anew_while_there_is_time() -> None:
    clock = Clock()

    assert [clock.ask() for _ in range(5)] == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("cost_s", [0.001, 0.01, 0.1, 2.0])
def test_pages_take_their_share_of_a_core_however_often_they_are_asked_for(cost_s: float) -> None:
    clock = Clock()
    asked = 100_000
    took_s, made = 60.0, []

    for _ in range(asked):
        clock.now_s += took_s / asked
        page = clock.ask(cost_s=cost_s)
        made.append(int(page))

    assert clock.spent_s <= BURST_S + took_s * SHARE + cost_s
    assert clock.made >= 4
    assert made == sorted(made)


def test_a_page_without_time_or_a_young_one_is_refused() -> None:
    clock = Clock()
    clock.ask("old")
    clock.ask("a", cost_s=BURST_S * 2)
    clock.now_s += MIN_AGE_S + 1

    for key in ("old", "new"):
        with pytest.raises(RequestError, match="10% of a core") as error:
            clock.ask(key)
        assert (error.value.status, error.value.retry_after_s) == (503, 1)
    assert clock.ask("a") == b"2"


def test_few_pages_are_kept() -> None:
    clock = Clock()
    for key in range(10 * MAX_KEPT):
        clock.ask(key, cost_s=0.0)
    clock.ask("last", cost_s=BURST_S)

    assert clock.ask(10 * MAX_KEPT - 1)
    with pytest.raises(RequestError):
        clock.ask(9 * MAX_KEPT)


def test_a_page_that_must_be_looked_up_is_answered_again_while_there_is_no_time() -> None:
    class Asked:
        def respond(self, status: int, body: bytes) -> None:
            self.answered = status, body

    async def look() -> Callable[[], bytes]:
        raise AssertionError

    clock, asked = Clock(), Asked()
    clock.ask("a", cost_s=BURST_S * 2)

    clock.pages.answer(cast("Exchange", asked), "a", look)

    assert asked.answered == (200, b"1")
