"""The fuzz targets on their seeds, on damaged seeds, and on every input that ever broke one."""

import random
from pathlib import Path

import pytest

from tests.fuzz.corpus import kept
from tests.fuzz.targets import STRUCTURED, TARGETS, seeds

BROKEN = Path(__file__).parent / "broken"


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_and_damaged_seeds_break_nothing(target: str) -> None:
    rng = random.Random(1)
    for seed in seeds(target):
        TARGETS[target](seed)
        for _ in range(1 if target == "starving" else 5):  # each of these is many calls, and slow
            damaged = bytearray(seed)
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            TARGETS[target](bytes(damaged[: rng.randrange(1, len(damaged) + 1)]))


def test_well_formed_events_of_any_kind_break_nothing() -> None:
    rng = random.Random(2)
    for _ in range(150):
        chosen = bytes([STRUCTURED]) + rng.randbytes(rng.randrange(300))
        TARGETS["engine"](chosen)
        TARGETS["engine_cache"](chosen)


@pytest.mark.parametrize("target", TARGETS)
def test_the_kept_corpus_breaks_nothing(target: str) -> None:
    inputs = kept(target)
    assert inputs, "make fuzz keeps some"
    for one in inputs:
        TARGETS[target](one)


def test_what_once_broke_a_target_no_longer_does() -> None:
    for path in BROKEN.glob("*-*"):
        TARGETS[path.name.partition("-")[0]](path.read_bytes())
