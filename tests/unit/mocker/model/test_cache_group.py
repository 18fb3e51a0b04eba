from kvmesh_lab.mocker.model.cache_group import CacheGroup, split_key


def test_a_key_tells_the_group_and_the_hash() -> None:
    largest = 2**64 - 1

    key = CacheGroup(number=3, window=128).key(largest)

    assert split_key(key) == (3, largest)
    assert split_key(largest) == (0, largest)
