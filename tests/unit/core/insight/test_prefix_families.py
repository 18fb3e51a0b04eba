from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.insight.prefix_families import (
    HALVED_AFTER,
    LEAST_SEEN,
    MAX_COUNTED,
    PrefixFamilies,
)


def test_a_prompt_of_common_blocks_alone_is_a_family_of_its_own() -> None:
    families = PrefixFamilies()
    found = [families.name([7]) for _ in range(LEAST_SEEN + 3)]

    assert (found[:LEAST_SEEN], len(set(found[LEAST_SEEN:]))) == ([7] * LEAST_SEEN, 3)


def test_what_was_common_is_forgotten() -> None:
    families = PrefixFamilies()
    for _ in range(500):
        families.name([7])
    for number in range(12 * HALVED_AFTER):
        families.name([100 + number])

    assert families.name([7, 8]) == 7


@given(st.integers(2, 40))
def test_counts_are_bounded_whatever_comes(common: int) -> None:
    families = PrefixFamilies()
    shared = list(range(1, common))
    number = 1_000
    for _ in range(MAX_COUNTED + 500):
        number += 1
        families.name([*shared, number])

    assert families.counted() <= MAX_COUNTED + common + 1
