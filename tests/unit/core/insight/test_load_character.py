from array import array

import msgspec
import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.insight.load_character import (
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
