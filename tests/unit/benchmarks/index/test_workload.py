"""Golden values: `compute_block_hash_for_seq` of ai-dynamo-runtime 1.6.1."""

import struct
from random import Random
from typing import Any

import pytest

from benchmarks.index.workload import BLOCK_SIZE, dynamo_local_hashes

TOKENS = [(i * 2654435761) % 150000 for i in range(50)]
PLAIN = [2987370459523182232, 5522010499147344544, 2544159035001837418]


def test_blocks_have_the_hashes_of_dynamo() -> None:
    assert dynamo_local_hashes(TOKENS) == PLAIN
    assert dynamo_local_hashes(struct.pack("<50I", *TOKENS)) == PLAIN
    assert dynamo_local_hashes([2**32 - 1] * 16) == [9046446989928805549]
    assert dynamo_local_hashes(TOKENS[:15]) == []


@pytest.mark.parametrize("seed", range(20))
def test_every_hash_is_the_runtimes_own(seed: int) -> None:
    """Against the peer itself, where it is installed; the stored values above always hold."""
    runtime: Any = pytest.importorskip(
        "dynamo._core", reason="ai-dynamo-runtime is not installed: pip install '.[bench]'"
    )
    rng = Random(seed)
    tokens = [rng.randrange(2**32) for _ in range(rng.randrange(5 * BLOCK_SIZE))]

    ours = dynamo_local_hashes(tokens)

    assert ours == runtime.compute_block_hash_for_seq(tokens, BLOCK_SIZE)
