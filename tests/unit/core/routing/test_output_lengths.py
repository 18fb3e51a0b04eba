import pytest

from kvmesh._native import OutputLengths
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.routing.output_lengths import OutputForecast, new_lengths


def prompt(family: int, own: int = 0, blocks: int = 8) -> BlockHashes:
    """Agree with the family in the first 4 blocks, 64 tokens, then with nobody."""
    shared = [family * 1000 + depth for depth in range(1, 5)]
    return BlockHashes.of([*shared, *(own * 1000 + 5 + n for n in range(blocks - 4))], 16)


def forecast(lengths: OutputLengths, hashes: BlockHashes) -> OutputForecast:
    return lengths.forecast(hashes)[1]


def learn(lengths: OutputLengths, hashes: BlockHashes, tokens: int) -> None:
    families, foreseen = lengths.forecast(hashes)
    lengths.learn(families, tokens, foreseen)


def test_families_are_told_apart_as_evidence_grows() -> None:
    lengths = new_lengths(16)
    for number in range(40):
        learn(lengths, prompt(1, 100 + number), 10)
        learn(lengths, prompt(2, 200 + number), 1000)

    short, long = forecast(lengths, prompt(1)), forecast(lengths, prompt(2))
    stranger = forecast(lengths, prompt(3))

    assert short.tokens == pytest.approx(10, abs=60)
    assert long.tokens == pytest.approx(1000, abs=60)
    assert (short.samples, short.family_tokens) == (40, 64)
    assert stranger.tokens == pytest.approx(505, abs=60)
    assert (stranger.samples, stranger.family_tokens) == (80, 0)


def test_a_family_that_changes_is_followed() -> None:
    lengths = new_lengths(16)
    for _ in range(100):
        learn(lengths, prompt(1), 10)
    for _ in range(100):
        learn(lengths, prompt(1), 500)

    assert forecast(lengths, prompt(1)).tokens > 450


def test_the_family_longest_unseen_is_forgotten() -> None:
    lengths = new_lengths(16, max_families=2)
    for family in (1, 2, 1, 3):
        learn(lengths, prompt(family), 10)

    assert [forecast(lengths, prompt(family)).family_tokens for family in (1, 2, 3)] == [64, 0, 64]


def test_another_block_size_finds_families_by_its_own_blocks() -> None:
    lengths = new_lengths(16)
    learn(lengths, prompt(1), 100)

    lengths.resize(32)
    families, foreseen = lengths.forecast(BlockHashes.of([1, 2, 3, 4, 5, 6, 7, 8], 32))

    assert (families, foreseen.samples, foreseen.family_tokens) == (((64, 2), (256, 8)), 1, 0)
    assert lengths.statistics().families == 0
