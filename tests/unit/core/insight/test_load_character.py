import random
from array import array

import msgspec
import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.insight.load_character import (
    CHARACTER_ROWS,
    Character,
    character_of,
    differences,
)
from kvmesh.core.insight.trace_ring import Traced, TraceRow

SOME = Character(
    requests_per_s=10.0,
    prompt_tokens=1000.0,
    output_tokens=100.0,
    shared=0.5,
    hot=0.1,
    prefill=0.8,
)


def row(at_s: float, keys: tuple[int, ...], prompt: int = 256, output: int = 64) -> TraceRow:
    return TraceRow(
        at_s, at_s, prompt, output, WorkerId("w"), Traced(0, array("Q", keys).tobytes())
    )


def test_a_character_is_in_means_and_shares() -> None:
    rows = [row(0.0, (1, 2)), row(1.0, (1, 2)), row(2.0, (3, 4), output=128), row(4.0, (1, 9))]

    found = character_of(rows, 128, 0.5)

    assert found.requests_per_s == pytest.approx(1.5)
    assert (found.prompt_tokens, found.output_tokens) == (256.0, 80.0)
    assert found.shared == pytest.approx((256 + 128) / 1024)
    assert found.hot == 0.75
    assert found.prefill == pytest.approx(640 / (640 + 320))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"requests_per_s": 21.0}, "requests/s 10 -> 21"),
        ({"output_tokens": 10.0}, "output tokens 100 -> 10"),
        ({"prompt_tokens": 0.0}, "prompt tokens 1e+03 -> 0"),
        ({"shared": 0.1}, "share of the prompts that others had before 50% -> 10%"),
        ({"hot": 0.9}, "share of the most frequent beginning 10% -> 90%"),
        ({"prefill": 0.1}, "share of prefill in all tokens 80% -> 10%"),
    ],
)
def test_another_load_is_told_in_words(change: dict[str, float], words: str) -> None:
    assert differences(SOME, msgspec.structs.replace(SOME, **change)) == (words,)


def test_noise_of_a_steady_load_is_no_other_load() -> None:
    """Two halves of one Poisson load differ less than what counts."""
    rng, now, rows = random.Random(5), 0.0, list[TraceRow]()
    for _ in range(20 * CHARACTER_ROWS):
        now += rng.expovariate(20.0)
        shared = (rng.randrange(20),) if rng.random() < 0.6 else (rng.getrandbits(60),)
        rows.append(row(now, shared, rng.randint(200, 2000), rng.randint(20, 400)))
    parts = [rows[at : at + CHARACTER_ROWS] for at in range(0, len(rows), CHARACTER_ROWS)]
    characters = [character_of(part, 128) for part in parts]

    assert not any(differences(one, other) for one in characters for other in characters)
