"""Golden values: `compute_block_hash_for_seq` of ai-dynamo-runtime 1.6.1."""

import struct
from random import Random
from typing import Any

import pytest
import xxhash

from kvmesh.core.blocks.dynamo import dynamo_local_hashes, dynamo_seed, dynamo_sequence_hashes
from kvmesh.errors import RequestError

TOKENS = [(i * 2654435761) % 150000 for i in range(50)]
PLAIN = [2987370459523182232, 5522010499147344544, 2544159035001837418]
IMAGES = [[2**63 + 5, 7], None]


def test_local_hashes() -> None:
    assert dynamo_local_hashes(TOKENS, 16) == PLAIN
    assert dynamo_local_hashes(struct.pack("<50I", *TOKENS), 16) == PLAIN
    assert dynamo_local_hashes(TOKENS[:13], 4) == [
        1991131228692713010,
        16703603606824934629,
        6803699490216276761,
    ]
    assert dynamo_local_hashes([2**32 - 1] * 16, 16) == [9046446989928805549]
    assert dynamo_local_hashes(TOKENS[:15], 16) == []


def test_adapters_and_namespaces() -> None:
    assert dynamo_seed() == 1337
    assert dynamo_local_hashes(TOKENS, 16, seed=dynamo_seed("adapter")) == [
        7140494052017787362,
        5706584350845668915,
        7603680627147810763,
    ]
    assert dynamo_local_hashes(TOKENS, 16, seed=dynamo_seed(namespace="tenant-a")) == [
        10811486281493588415,
        12304080165395891228,
        4659644225070651789,
    ]
    assert dynamo_local_hashes(TOKENS, 16, seed=dynamo_seed("adapter", "tenant-a")) == [
        12904144858264431648,
        8570146883006778136,
        5279033251236173172,
    ]
    assert dynamo_local_hashes(TOKENS[:16], 16, seed=dynamo_seed("Größe-β")) == [
        8144710726574459657
    ]


def test_multimodal_objects_count_whatever_their_order() -> None:
    expected = [11012309557384467111, *PLAIN[1:]]

    assert dynamo_local_hashes(TOKENS, 16, objects=IMAGES) == expected
    assert dynamo_local_hashes(TOKENS, 16, objects=[[7, 2**63 + 5]]) == expected


def test_eagle_windows_reach_one_token_into_the_next_block() -> None:
    expected = [17038674020200262681, 2133238241927316064, 4538880166152385523]

    assert dynamo_local_hashes(TOKENS, 16, eagle=True) == expected
    assert dynamo_local_hashes(TOKENS[:48], 16, eagle=True) == expected[:2]
    assert dynamo_local_hashes(TOKENS[:16], 16, eagle=True) == []
    everything = dynamo_local_hashes(
        TOKENS, 16, seed=dynamo_seed("adapter"), objects=IMAGES, eagle=True
    )
    assert everything == [2311498862848663982, 9578387077514621519, 4840659209023913223]


def test_sequence_hashes_chain_the_local_ones() -> None:
    second = xxhash.xxh3_64_intdigest(struct.pack("<QQ", PLAIN[0], PLAIN[1]), seed=1337)
    third = xxhash.xxh3_64_intdigest(struct.pack("<QQ", second, PLAIN[2]), seed=1337)

    assert dynamo_sequence_hashes(PLAIN) == [PLAIN[0], second, third]
    assert dynamo_sequence_hashes([]) == []


def test_wrong_input_is_refused() -> None:
    with pytest.raises(RequestError, match="token ids are integers"):
        dynamo_local_hashes([-1] * 16, 16)
    with pytest.raises(ValueError, match="block_size is 0"):
        dynamo_local_hashes(TOKENS, 0)


@pytest.mark.parametrize("seed", range(20))
def test_every_hash_is_the_runtimes_own(seed: int) -> None:
    """Against the peer itself, where it is installed; the stored values above always hold."""
    runtime: Any = pytest.importorskip(
        "dynamo._core", reason="ai-dynamo-runtime is not installed: pip install '.[bench]'"
    )
    rng = Random(seed)
    block_size = rng.choice([1, 2, 16, 64])
    tokens = [rng.randrange(2**32) for _ in range(rng.randrange(5 * block_size))]
    lora, namespace = rng.choice(["", "a", "Größe-β", "x" * 300]), rng.choice(["", "a", "tenant-b"])
    blocks = len(tokens) // block_size
    objects = [
        rng.choice([None, [rng.randrange(2**64) for _ in range(rng.randrange(1, 4))]])
        for _ in range(rng.randrange(blocks + 1))
    ]
    eagle = rng.random() < 0.5

    ours = dynamo_local_hashes(
        tokens, block_size, seed=dynamo_seed(lora, namespace), objects=objects, eagle=eagle
    )

    theirs = runtime.compute_block_hash_for_seq(
        tokens,
        block_size,
        block_mm_infos=[
            one and {"mm_objects": [{"mm_hash": value, "offsets": []} for value in one]}
            for one in objects
        ],
        lora_name=lora or None,
        is_eagle=eagle,
        cache_namespace=namespace or None,
    )
    assert ours == theirs
