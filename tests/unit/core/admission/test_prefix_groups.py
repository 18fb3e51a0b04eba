from kvmesh.core.admission.prefix_groups import PrefixGroups
from kvmesh.core.blocks.hashing import BlockHashes


def entered(**prompts: list[int]) -> PrefixGroups:
    groups = PrefixGroups()
    for name, blocks in prompts.items():
        groups.enter(name, BlockHashes.of(blocks, 16))
    return groups


def test_the_longest_shared_beginning_is_found_at_powers_of_two() -> None:
    groups = entered(a=[1, 2, 3, 4, 5], b=[1, 2, 3, 4, 6], c=[1, 2, 7], d=[8])

    assert (groups.alike("a", 9), groups.alike("c", 9)) == ((4, ["b"]), (2, ["a", "b"]))
    assert (groups.alike("c", 1), groups.alike("d", 9)) == ((2, ["a"]), (0, []))
