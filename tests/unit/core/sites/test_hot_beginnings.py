from kvmesh.core.blocks.hashing import unpack_hashes
from kvmesh.core.buckets.beginnings import Beginning
from kvmesh.core.sites.hot_beginnings import MOST_COUNTED, HotBeginnings

SHORT, LONG = Beginning(256, 1), Beginning(4096, 2)


def test_what_several_requests_share_is_told_the_most_worth_first() -> None:
    hot = HotBeginnings()
    hot.note([SHORT, LONG, Beginning(8192, 3)], 0.0)
    hot.note([SHORT, LONG], 1.0)

    assert unpack_hashes(hot.take(8, 2.0)) == (2,)
    assert unpack_hashes(hot.take(1000, 3.0)) == (1,)
    assert hot.take(1000, 4.0) == b""
    assert hot.take(7, 4.0) == b""


def test_what_is_still_hot_is_told_again_what_is_not_is_not() -> None:
    hot = HotBeginnings()
    for now in (0.0, 0.0, 0.0, 0.0):
        hot.note([SHORT, LONG], now)
    hot.take(1000, 0.0)
    hot.note([LONG], 119.0)

    assert hot.take(1000, 119.0) == b""
    assert unpack_hashes(hot.take(1000, 121.0)) == (2, 1)
    assert hot.take(1000, 500.0) == b""


def test_the_longest_unused_is_forgotten_beyond_the_bound() -> None:
    hot = HotBeginnings()
    hot.note([SHORT], 0.0)
    hot.note([Beginning(256, key) for key in range(10, 10 + MOST_COUNTED)], 1.0)

    assert len(hot) == MOST_COUNTED
    hot.note([SHORT], 2.0)
    assert hot.take(8, 2.0) == b""
