"""What an engine is given, in what order, and when that ends."""

from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.warming.kept_prompts import KeptPrompts, Sent
from kvmesh.core.warming.plan import Candidate, WarmBounds, plan_prompts

SIZE = 16
ALL = WarmBounds(tokens=1 << 30, room=1 << 30)
EAGER = WarmBounds(tokens=1 << 30, room=1 << 30, least_rate=0.0)


def prompt(*parts: tuple[int, int]) -> BlockHashes:
    """Return hashes that begin alike where their parts do: (which, how many blocks)."""
    return BlockHashes.of(
        [which * 10_000 + n for which, count in parts for n in range(count)], SIZE
    )


def shared_by(requests: int, own_blocks: int = 32) -> KeptPrompts[str]:
    """Return prompts of one beginning, and one that nobody shares, which came last."""
    kept = KeptPrompts[str]()
    for number in range(requests):
        parts = (1, 32), (number + 3, own_blocks * (1 + number % 2))
        kept.add(prompt(*parts), Sent(f"shared {number}", 1), SIZE, float(number))
    kept.add(prompt((2, 64)), Sent("alone", 1), SIZE, float(requests))
    return kept


def plan(
    kept: KeptPrompts[str],
    bounds: WarmBounds = EAGER,
    held: int = 0,
    elsewhere: dict[str, int] | None = None,
) -> list[tuple[str, int]]:
    """Return what is planned for one of four engines: `held` blocks of what is shared it has."""
    candidates = [
        Candidate(
            one,
            held if one.what.startswith("shared") else 0,
            (elsewhere or {}).get(one.what, 0),
        )
        for one in kept.prompts()
    ]
    found = plan_prompts(kept.rates(100.0), candidates, 4, SIZE, bounds)
    return [(one.what, tokens) for one, tokens in found]


def test_the_shortest_way_to_what_many_share_comes_first() -> None:
    found = plan(shared_by(20))

    assert found[0][0].startswith("shared")
    assert found[0][1] == 64 * SIZE
    assert {tokens for name, tokens in found[1:] if name != "alone"} == {32 * SIZE, 64 * SIZE}
    assert ("alone", 64 * SIZE) in found


def test_what_will_hardly_be_asked_for_is_not_worth_it() -> None:
    found = plan(shared_by(20), ALL)

    assert [tokens for _, tokens in found] == [64 * SIZE]


def test_no_more_is_planned_than_there_is_budget_and_room_for() -> None:
    kept = shared_by(20)

    assert plan(kept, WarmBounds(tokens=63 * SIZE, room=1 << 30, least_rate=0.0)) == []
    assert sum(n for _, n in plan(kept, WarmBounds(1 << 30, 100 * SIZE, 0.0))) <= 100 * SIZE
    assert plan(kept, WarmBounds(tokens=-5, room=1 << 30)) == []


def test_what_the_engine_has_costs_nothing_and_is_worth_nothing() -> None:
    assert plan(shared_by(20), ALL, held=32) == []
    assert ("alone", 64 * SIZE) in plan(shared_by(20), EAGER, held=1000)


def test_what_no_other_engine_has_comes_before_what_some_has() -> None:
    kept = KeptPrompts[str]()
    for which in range(1, 5):
        kept.add(prompt((which, 32)), Sent(f"p{which}", 1), SIZE, 0.0)

    found = plan(kept, elsewhere={"p1": 32, "p2": 16, "p3": 1000})

    assert [name for name, _ in found] == ["p4", "p2", "p1", "p3"]


def test_no_tenant_takes_more_than_its_share_while_others_want_theirs() -> None:
    kept = KeptPrompts[str]()
    for number in range(20):
        for again in range(10 if number < 19 else 2):
            tenant = "junk" if number < 19 else "small"
            sent = Sent(f"{tenant} {number}", 1, tenant)
            kept.add(prompt((number + 1, 64)), sent, SIZE, 5.0 * again + number / 10)
    kept.add(prompt((50, 64)), Sent("small once", 1, "small"), SIZE, 60.0)

    each = 64 * SIZE
    found = plan(kept, WarmBounds(tokens=4 * each, room=1 << 30, least_rate=0.0))
    alone = plan(kept, WarmBounds(tokens=30 * each, room=1 << 30, least_rate=0.0))

    assert sorted(name.split()[0] for name, _ in found) == ["junk", "junk", "small", "small"]
    assert len(alone) == 21  # what nobody else wants goes to whoever does
