from kvmesh.core.engines.seen import GroupSeen


def test_a_group_says_its_kind_its_window_and_its_blocks() -> None:
    assert GroupSeen(block_size=16).words() == "untold kind in blocks of 16"
    window = GroupSeen(kind="sliding_window", block_size=32, window=128)
    assert window.words() == "sliding_window of 128 tokens in blocks of 32"
