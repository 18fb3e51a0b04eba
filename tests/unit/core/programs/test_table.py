import msgspec
import pytest

from kvmesh.core.programs.table import AgentRecord, ProgramTable, check_record, order_of
from tests.unit.core.programs.program_cases import key, make_turn


def test_a_tenant_with_too_many_agents_gives_up_its_own() -> None:
    table = ProgramTable(10, 2)
    table.note(make_turn("a", 1, tenant="x"), 0.0)
    table.note(make_turn("b", 1, tenant="y"), 0.0)
    table.note(make_turn("c", 1, tenant="x"), 0.0)
    table.note(make_turn("a", 1, 2, tenant="x"), 1.0)

    agent, gone = table.note(make_turn("d", 1, tenant="x"), 2.0)

    assert agent is not None
    assert gone is not None
    assert gone.key == key("c")
    assert set(table.agents) == {key("a"), key("b"), key("d")}


def test_whoever_takes_a_turn_gives_its_place_to_nobody() -> None:
    table = ProgramTable(1, 1)
    agent, _ = table.note(make_turn("a", 1), 0.0)
    assert agent is not None
    agent.enter("running", 0.0)

    assert (table.note(make_turn("b", 1), 1.0), len(table)) == ((None, None), 1)


def test_a_program_has_its_agents_and_begins_with_the_first() -> None:
    table = ProgramTable(10, 10)
    table.note(make_turn("root", 1), 5.0)
    child, _ = table.note(make_turn("child", 1, program="root"), 9.0)

    assert child is not None
    assert child.began_s == 5.0
    assert set(table.agents) == {key("root"), key("child")}
    table.remove(key("root"))
    assert list(table.agents) == [key("child")]
    assert table.remove(key("root")) is None


RECORD = AgentRecord(revision=1, agent=key("a"), program=key("a"))


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"agent": key("b")}, "not the key"),
        ({"program": "short"}, "not the key"),
        ({"tokens": -1}, "out of its range"),
        ({"tokens": 2**31}, "out of its range"),
        ({"served_tokens": 10**25}, "out of its range"),
        ({"revision": 2**60}, "out of its range"),
        ({"tool": "x" * 600}, "too long"),
        ({"worker": "x" * 600}, "too long"),
        ({"age_s": -1.0}, "no such age"),
        ({"since_s": float("nan")}, "no such age"),
        ({"late_s": float("inf")}, "no such age"),
    ],
)
def test_what_a_sibling_may_not_say_is_named(change: dict[str, object], wrong: str) -> None:
    assert wrong in check_record(key("a"), msgspec.structs.replace(RECORD, **change))


def test_the_larger_revision_counts_then_the_rest() -> None:
    later = msgspec.structs.replace(RECORD, revision=2)
    other = msgspec.structs.replace(RECORD, worker="w1")

    assert order_of(RECORD) < order_of(other) < order_of(later)
