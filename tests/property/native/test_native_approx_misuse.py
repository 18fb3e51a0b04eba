"""Nothing that Python code may do to the compiled believed prefixes harms the process."""

import gc
import random
from array import array
from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.index.approx import ApproxStatistics, new_approx
from tests.property.support.memory import assert_gives_back

A, B = WorkerId("a"), WorkerId("b")
KEEPS: dict[str, dict[str, bool]] = {
    "all": {},
    "thinned": {"thinned": True},
    "graded": {"graded": True},
}
PROMPT = list(range(1, 101))


def filled(**options: Any) -> Any:
    index: Any = new_approx(**options)
    index.record(A, PROMPT, 1.0)
    return index


MISUSES: dict[str, Callable[[Any], object]] = {
    "made of nothing": lambda index: type(index)(),
    "made by names": lambda index: type(index)(ApproxStatistics, ttl_s=1.0),
    "made of words": lambda index: type(index)(ApproxStatistics, "1", (1, 1, None), 8.0, 0),
    "a limit below 0": lambda index: type(index)(ApproxStatistics, 1.0, (1, 1, -1), 8.0, 0),
    "a limit in words": lambda index: type(index)(ApproxStatistics, 1.0, (1, 1, "1"), 8.0, 0),
    "another way to keep": lambda index: type(index)(ApproxStatistics, 1.0, (1, 1, None), 8.0, 3),
    "a way to keep below 0": lambda index: type(index)(
        ApproxStatistics, 1.0, (1, 1, None), 8.0, -1
    ),
    "a way to keep in words": lambda index: type(index)(
        ApproxStatistics, 1.0, (1, 1, None), 8.0, ""
    ),
    "record alone": lambda index: index.record(A, [1]),
    "record too much": lambda index: index.record(A, [1], 1.0, 2.0, 3.0, 4.0),
    "record to keep for words": lambda index: index.record(A, [1], 1.0, 2.0, "long"),
    "record by another name": lambda index: index.record(A, [1], 1.0, ttl=2.0),
    "record by two names": lambda index: index.record(A, [1], 1.0, ttl_s=2.0, now=1.0),
    "record nothing": lambda index: index.record(A, None, 1.0),
    "record words": lambda index: index.record(A, ["1"], 1.0),
    "record fractions": lambda index: index.record(A, array("d", [1.0]), 1.0),
    "record below 0": lambda index: index.record(A, [-1], 1.0),
    "record beyond": lambda index: index.record(A, [1 << 64], 1.0),
    "record for a list": lambda index: index.record([], [1], 1.0),
    "record in words": lambda index: index.record(A, [1], "1"),
    "record for words": lambda index: index.record(A, [1], 1.0, "1"),
    "record at no time": lambda index: index.record(A, [1], nan),
    "record for no time": lambda index: index.record(A, [1], 1.0, nan),
    "record for ever": lambda index: index.record(A, [1], 1.0, inf),
    "record for an instant": lambda index: index.record(A, [1], 0.0, 5e-324),
    "record what has no hashes": lambda index: index.record(A, Meddler(lambda _: None), 1.0),
    "record what fails": lambda index: index.record(A, Meddler(lambda _: 1 // 0), 1.0),
    "record graded alone": lambda index: index.record_graded(A, [1], 1),
    "record graded of words": lambda index: index.record_graded(A, ["1"], 1, 1.0),
    "record graded of so many words": lambda index: index.record_graded(A, [1], "1", 1.0),
    "record graded at no time": lambda index: index.record_graded(A, [1], 1, nan),
    "record graded by another name": lambda index: index.record_graded(A, [1], 1, 1.0, ttl=2.0),
    "expire alone": lambda index: index.expire(),
    "expire in words": lambda index: index.expire("1"),
    "expire by words": lambda index: index.expire(1e9, "1"),
    "expire by another name": lambda index: index.expire(1e9, most=1),
    "revoke alone": lambda index: index.revoke(A),
    "revoke numbers": lambda index: index.revoke(A, [1]),
    "revoke for a list": lambda index: index.revoke([], b""),
    "remove a list": lambda index: index.remove_worker([]),
    "sweep in words": lambda index: index.sweep("1"),
    "blocks of a list": lambda index: index.blocks([]),
    "sizes of a number": lambda index: index.sizes(1),
    "sizes of lists": lambda index: index.sizes([A, []]),
    "find in nothing": lambda index: index.find_groups(None),
    "find a list": lambda index: index.find_matches(PROMPT),
    "find short numbers": lambda index: index.find_groups(Meddler(lambda _: array("I", [1]))),
    "another end": lambda index: setattr(index, "next_end", 1.0),
    "a life in words": lambda index: setattr(index, "ttl_s", "1"),
}
ERRORS = (TypeError, ValueError, OverflowError, ArithmeticError, AttributeError)


class Meddler:
    """Hashes that do something whenever they are asked for more."""

    def __init__(self, meddle: Callable[[int], Any], blocks: Any = 1000) -> None:
        self._meddle = meddle
        self.blocks = blocks

    def upto(self, count: int) -> "array[int]":
        return self._meddle(count)  # type: ignore[no-any-return]  # whatever it is


@pytest.mark.parametrize("misuse", MISUSES)
@pytest.mark.parametrize("keeps", KEEPS)
def test_misuse_is_an_error_and_changes_nothing(misuse: str, keeps: str) -> None:
    index = filled(**KEEPS[keeps])
    before = index.statistics()

    with pytest.raises(ERRORS):
        MISUSES[misuse](index)

    assert index.statistics() == before
    assert index.find_matches(BlockHashes.of(PROMPT, 1)) == {A: 100}


def test_an_error_names_what_was_wrong() -> None:
    index = filled()

    with pytest.raises(OverflowError, match=r"from 0 to 2\^64-1, not 18446744073709551616"):
        index.record(A, [1 << 64], 1.0)
    with pytest.raises(TypeError, match=r"a sequence of u64s, or have `upto`.*not object"):
        index.record(A, object(), 1.0)
    with pytest.raises(TypeError, match="no argument 'ttl', or has it twice: it takes worker"):
        index.record(A, [1], 1.0, ttl=2.0)


@pytest.mark.parametrize("blocks", [None, "1", 1 << 70])
@pytest.mark.parametrize("keeps", ["thinned", "graded"])
def test_a_prompt_of_no_length_ends_a_search(blocks: object, keeps: str) -> None:
    index = filled(**KEEPS[keeps])

    with pytest.raises((TypeError, OverflowError)):
        index.find_groups(Meddler(lambda _: array("Q", PROMPT), blocks))


@pytest.mark.parametrize("keeps", KEEPS)
def test_an_index_that_changes_under_a_search_ends_it(keeps: str) -> None:
    meddlings: list[Callable[[Any, int], object]] = [
        lambda index, _: index.record(B, PROMPT, 1.0),
        lambda index, _: index.revoke(A, pack_hashes([48])),
        lambda index, _: index.remove_worker(A),
        lambda index, count: [index.record(f"w{n}", [n], 1.0) for n in range(count, count + 200)],
        lambda index, _: index.expire(1e9),
    ]
    for meddle in meddlings:
        index = filled(**KEEPS[keeps])

        def asked(count: int, index: Any = index, meddle: Any = meddle) -> "array[int]":
            meddle(index, count)
            return array("Q", range(1, count + 64))

        with pytest.raises(RuntimeError, match="while"):
            index.find_groups(Meddler(asked))


def test_a_prompt_may_search_while_it_is_searched() -> None:
    index = filled()
    found = []

    def asked(_: int) -> "array[int]":
        found.append(index.find_groups(BlockHashes.of(PROMPT[:3], 1)))
        return array("Q", PROMPT)

    assert index.find_groups(Meddler(asked)) == [(100, (A,))]
    assert found == [[(3, (A,))]] * len(found)


class Sly:
    """A worker that does something whenever it is compared."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        act, self.act = self.act, lambda: None
        act()
        return self is other


@pytest.mark.parametrize("seed", range(30))
def test_names_that_act_do_no_harm(seed: int) -> None:
    rng = random.Random(seed)
    index = filled(thinned=True, max_entries=3000)
    names: list[Any] = []

    def act() -> None:
        index_of = rng.choice(names)
        for _ in range(rng.randrange(3)):
            kind = rng.randrange(5)
            if kind == 0:
                index.remove_worker(index_of)
            elif kind == 1:
                index.record(
                    index_of, [rng.getrandbits(64) for _ in range(rng.randrange(400))], 1.0
                )
            elif kind == 2:
                index.expire(1e9, 100)
            elif kind == 3:
                index.revoke(index_of, pack_hashes(PROMPT))
            else:
                index.sweep(1000)
        rng.choice(names).act = act

    names += [Sly(lambda: None) for _ in range(5)]
    for _ in range(200):
        rng.choice(names).act = act
        try:
            kind = rng.randrange(3)
            if kind == 0:
                index.remove_worker(rng.choice(names))
            elif kind == 1:
                index.record(rng.choice(names), PROMPT[: rng.randrange(1, 100)], 1.0)
            else:
                index.blocks(rng.choice(names))
        except (KeyError, RuntimeError):
            pass
        index.find_groups(BlockHashes.of(PROMPT, 1))

    for name in names:
        name.act = lambda: None
    index.expire(1e9)
    assert index.statistics().entries == sum(index.sizes(index.workers()))


def test_an_index_in_a_cycle_is_collected() -> None:
    class Named(str):  # noqa: SLOT000  a name that holds the index
        index: Any

    index = filled()
    name = Named("x")
    name.index = index
    index.record(name, PROMPT, 1.0)
    del index, name

    assert gc.collect() >= 2


def test_all_memory_comes_back() -> None:
    def live() -> None:
        rng = random.Random(1)
        index = filled(thinned=True, max_entries=9000)
        for step in range(60):
            path = [rng.getrandbits(60) for _ in range(rng.choice([1, 3, 64, 700]))]
            index.record(f"w{step % 7}", [*PROMPT[: step * 2], *path], step / 3)
            index.record(f"w{step % 7}", [*PROMPT[:step], 7], step / 3)
            index.revoke(f"w{step % 5}", pack_hashes([path[0], PROMPT[step]]))
            index.find_groups(BlockHashes.of([*PROMPT, *path], 1))
            if step % 20 == 5:
                index.remove_worker("w3")
                index.sweep(1 << 20)
        index.expire(90.0)

    assert_gives_back(live, 3)
