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


def test_a_family_that_changes_is_followed() -> None:
    lengths = new_lengths(16)
    for _ in range(100):
        learn(lengths, prompt(1), 10)
    for _ in range(100):
        learn(lengths, prompt(1), 500)

    assert forecast(lengths, prompt(1)).tokens > 450
