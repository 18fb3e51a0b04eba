from array import array

from kvmesh.core.blocks.hashing import byte_blocks, namespace_root, sequence_hashes


def test_a_longer_prompt_begins_with_the_blocks_of_the_shorter() -> None:
    short, long = byte_blocks(b"x" * 130, 16, 0), byte_blocks(b"x" * 130 + b"yz" * 64, 16, 0)

    assert (len(short), len(long), long.upto(4)[:2]) == (2, 4, short.upto(2)[:2])


def test_blocks_of_bytes_never_meet_those_of_ids_nor_of_another_namespace() -> None:
    text = b"x" * 64
    ids = sequence_hashes(array("I", text), 16)
    salted = namespace_root(cache_salt="s")

    assert byte_blocks(text, 16, 0).upto(1) != ids
    assert byte_blocks(text, 16, 0).upto(1) != byte_blocks(text, 16, salted).upto(1)
