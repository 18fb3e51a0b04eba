import pytest

from kvmesh.core.engines.engine_events import EngineEvent, EngineStored
from kvmesh.core.engines.kv_events.group_kinds import (
    ALL_BLOCKS,
    MOST_GROUPS,
    MOST_KINDS,
    MOST_SIZES,
    MOST_STEP,
    Group,
    Groups,
    Learned,
    Role,
)
from kvmesh.errors import CodecError


def stored(
    group: int = 0,
    kind: str | None = "full_attention",
    size: int = 16,
    *,
    window: int | None = None,
    tier: int = 0,
    ahead: int = 0,
) -> EngineStored:
    lookahead = (bytes(4 * ahead),) if ahead else ()
    return EngineStored(
        *((1,), None, bytes(4 * size), size),
        tier=tier,
        group=group,
        kind=kind,
        window=window,
        lookahead=lookahead,
    )


def learned(*events: EngineEvent, said: int | None = None, drops: bool = False) -> Groups:
    groups = Groups(said, drops=drops)
    groups.learn(events)
    return groups


def only(groups: Groups, index: int) -> Group:
    group = groups.get(index)
    assert group is not None
    return group


@pytest.mark.parametrize(
    ("kind", "window", "role", "need", "understood"),
    [
        (None, None, Role.FULL, 1, True),
        ("mla_attention", None, Role.FULL, 1, True),
        ("sliding_window", 64, Role.WINDOW, 4, True),
        ("sliding_window_mla", 1, Role.WINDOW, 1, True),
        ("sliding_window", None, Role.WINDOW, ALL_BLOCKS, False),
        ("chunked_local_attention", None, Role.WINDOW, ALL_BLOCKS, False),
        ("mamba", None, Role.STATE, 1, True),
    ],
)
def test_a_kind_says_what_a_hit_needs(
    kind: str | None, window: int | None, role: Role, need: int, understood: bool
) -> None:
    group = only(learned(stored(kind=kind, window=window)), 0)

    assert (group.role, group.need, group.understood) == (role, need, understood)
    assert group.statistics(3).understood is understood


def test_hits_end_at_multiples_of_every_block_size_unless_states_are_kept_at_finer_ones() -> None:
    assert learned(stored(0), stored(1, "sliding_window", 32, window=64)).align == 2
    assert learned(stored(0), stored(1, "mamba", 32)).align == 1
    window = stored(2, "sliding_window", 32, window=64)
    assert learned(stored(0), stored(1, "mamba", 32), window).align == 2


def test_an_engine_that_drops_a_block_must_match_one_more() -> None:
    groups = learned(stored(0), stored(1, "sliding_window", 32, window=64), drops=True)

    assert (groups.drop, only(groups, 1).need) == (2, 3)
    assert learned(stored(0, "mamba"), drops=True).drop == 1
    too_long = learned(stored(0), stored(1, "sliding_window", 256, window=64), drops=True)
    assert (too_long.drop, too_long.align) == (0, ALL_BLOCKS)


def test_more_groups_than_a_model_has_are_refused() -> None:
    events = [stored(index) for index in range(MOST_GROUPS + 1)]

    with pytest.raises(CodecError, match=f"cache group {MOST_GROUPS} behind {MOST_GROUPS} others"):
        learned(*events)


@pytest.mark.parametrize("what", ["kind", "window", "size"])
def test_a_group_that_is_told_anew_without_end_is_not_understood(what: str) -> None:
    groups = learned(stored(), stored(1, "sliding_window", 16, window=64))
    changes = 0
    for turn in range(2 * MOST_SIZES):
        event = {
            "kind": stored(1, ("mamba", "sliding_window")[turn % 2], window=64),
            "window": stored(1, "sliding_window", window=80 + 16 * turn),
            "size": stored(1, "sliding_window", 32 + 16 * turn, window=64),
        }[what]
        changes += groups.learn([event]) is not Learned.NOTHING

    assert changes == (MOST_SIZES if what == "size" else MOST_KINDS)
    group = only(groups, 1)
    assert (group.role, group.need, group.understood) == (Role.WINDOW, ALL_BLOCKS, False)
    assert only(groups, 0).understood


def test_blocks_of_too_many_units_leave_no_hits() -> None:
    groups = learned(stored(0, size=4), stored(1, size=4 * MOST_STEP))
    assert (groups.align, only(groups, 1).role, only(groups, 1).step) == (1024, Role.FULL, 1024)

    groups = learned(stored(0, size=4), stored(1, size=4 * (MOST_STEP + 1)))
    group = only(groups, 1)
    assert (groups.align, group.role, group.step) == (ALL_BLOCKS, Role.STATE, 1)
    assert not group.understood
