"""Who gets which cost: the pure part of marking pods."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.insight.pod_costs import (
    LEAVES,
    MOST_COST,
    MarkedPod,
    PodWorker,
    address_in,
    canonical,
    find_changes,
    find_costs,
    misleads,
)


def pod(name: str, *addresses: str, cost: int | None = None) -> MarkedPod:
    return MarkedPod(name, addresses, cost)


def worker(name: str, address: str, cost_s: float = 1.0, *, drains: bool = False) -> PodWorker:
    return PodWorker(name, address, cost_s, drains)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", ""),
        ("010.0.0.1", ""),
        ("10.0.0.1:8000", ""),
        ("vllm-0.vllm", ""),
        ("", ""),
        ("1" * 10_000, ""),
    ],
)
def test_an_address_is_known_in_every_spelling_and_a_name_is_none(text: str, address: str) -> None:
    assert canonical(text) == address


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1"),
        ("https://[2001:DB8::0:1]:8000/v1", "2001:db8::1"),
        ("http://user:word@10.0.0.1", "10.0.0.1"),
        ("http://vllm-0.vllm:8000", ""),
        ("http://[10.0.0.1", ""),
        ("http://[fe80::1%25eth0]:8000", ""),
        ("", ""),
    ],
)
def test_the_address_of_a_url_is_that_of_its_host(url: str, address: str) -> None:
    assert address_in(url) == address


def test_each_pod_costs_what_its_workers_do_and_ranks_of_one_engine_add_up() -> None:
    pods = [pod("a", "10.0.0.1"), pod("b", "10.0.0.2", "fd00::2"), pod("c", "10.0.0.3"), pod("d")]
    workers = [
        worker("one", "10.0.0.1", 12.5),
        worker("two-dp0", "10.0.0.2", 0.25),
        worker("two-dp1", "fd00::2", 1.0),
        worker("elsewhere", "10.9.9.9"),
        worker("named", ""),
    ]

    found = find_costs(pods, workers)

    assert found.costs == {"a": 12_500, "b": 1_250}
    assert found.unclear == ()


def test_an_address_that_several_pods_have_is_told_by_the_worker_s_name() -> None:
    pods = [pod("a", "10.0.0.1"), pod("b", "10.0.0.1"), pod("c", "10.0.0.1")]
    workers = [
        worker("a", "10.0.0.1", 1.0),
        worker("b-dp0", "10.0.0.1", 2.0),
        worker("b-dp1", "10.0.0.1", 3.0),
        worker("of-another-name", "10.0.0.1", 4.0),
    ]

    found = find_costs(pods, workers)

    assert found.costs == {"a": 1000, "b": 5000}
    assert found.unclear == ("of-another-name",)


def test_a_pod_that_drains_is_the_cheapest_once_all_its_workers_do() -> None:
    pods = [pod("a", "10.0.0.1"), pod("b", "10.0.0.2")]
    workers = [
        worker("a-dp0", "10.0.0.1", 9.0, drains=True),
        worker("a-dp1", "10.0.0.1", 9.0, drains=True),
        worker("b-dp0", "10.0.0.2", 9.0, drains=True),
        worker("b-dp1", "10.0.0.2", 1.0),
    ]

    assert find_costs(pods, workers).costs == {"a": LEAVES, "b": 10_000}
    assert LEAVES == -MOST_COST == -(2**31 - 1)


@pytest.mark.parametrize(
    ("cost_s", "cost"),
    [(math.inf, MOST_COST), (math.nan, 0), (-1.0, 0), (1e25, MOST_COST), (2147483.647, MOST_COST)],
)
def test_a_cost_that_kubernetes_would_refuse_is_brought_into_range(
    cost_s: float, cost: int
) -> None:
    found = find_costs([pod("a", "10.0.0.1")], [worker("w", "10.0.0.1", cost_s)])

    assert found.costs == {"a": cost}


@pytest.mark.parametrize(
    ("marked", "cost", "changed"),
    [
        (None, 100, False),
        (None, 101, True),
        (900, 1000, False),
        (8000, 10_000, False),
        (7400, 10_000, True),
        (13_000, 10_000, True),
        (None, LEAVES, True),
        (LEAVES, LEAVES, False),
        (LEAVES, 0, True),
        (-5, 0, True),
        (-5, LEAVES, True),
        (2**31 - 1, 0, True),
    ],
)
def test_a_mark_that_is_about_right_stays(marked: int | None, cost: int, *, changed: bool) -> None:
    found = find_changes([pod("a", cost=marked), pod("unknown")], {"a": cost}, 9)

    assert found == ([("a", cost)] if changed else [])


def test_marks_that_are_farthest_off_are_changed_first_and_no_more_than_asked_for() -> None:
    pods = [pod("a", cost=500), pod("b"), pod("c", cost=90_000), pod("d")]
    costs = {"a": 1000, "b": 40_000, "c": LEAVES, "d": 3000}

    assert find_changes(pods, costs, 3) == [("c", LEAVES), ("b", 40_000), ("d", 3000)]


@pytest.mark.parametrize(
    ("marks", "wrong"),
    [
        ({}, False),
        ({"a": (None, 900)}, False),
        ({"a": (1000, 1000), "b": (5000, 9000)}, False),
        ({"a": (1000, 1000), "b": (None, 9000)}, True),
        ({"a": (1000, 9000), "b": (1050, 1000)}, True),
        ({"a": (1000, 2900), "b": (1050, 1000)}, False),
        ({"a": (1000, LEAVES), "b": (2000, 2000)}, True),
        ({"a": (LEAVES, LEAVES), "b": (2000, 2000)}, False),
        ({"a": (LEAVES, LEAVES)}, False),
        ({"a": (LEAVES, 0), "b": (2000, 2000)}, True),
    ],
)
def test_marks_mislead_where_a_dear_pod_would_be_taken(
    marks: dict[str, tuple[int | None, int]], *, wrong: bool
) -> None:
    pods = [pod(name, cost=marked) for name, (marked, _) in marks.items()]
    costs = {name: cost for name, (_, cost) in marks.items()}

    assert misleads([*pods, pod("unknown")], costs) is wrong


marks = st.one_of(st.none(), st.integers(-MOST_COST, MOST_COST), st.integers(-9, 3000))
costs = st.one_of(st.integers(0, MOST_COST), st.integers(0, 3000), st.just(LEAVES))


@given(st.lists(st.tuples(marks, costs), max_size=12))
def test_once_all_changes_are_made_no_mark_misleads(given: list[tuple[int | None, int]]) -> None:
    pods = [pod(f"p{number}", cost=marked) for number, (marked, _) in enumerate(given)]
    wanted = {f"p{number}": cost for number, (_, cost) in enumerate(given)}

    made = dict(find_changes(pods, wanted, len(pods)))

    after = [pod(one.name, cost=made.get(one.name, one.cost)) for one in pods]
    assert find_changes(after, wanted, len(pods)) == []
    assert not misleads(after, wanted)
