from kvmesh.core.programs.table import ProgramTable
from tests.unit.core.programs.program_cases import key, make_turn


def test_a_sub_agent_of_a_sub_agent_is_in_the_roots_program() -> None:
    table = ProgramTable(10, 10)
    table.note(make_turn("root", 10), 0.0)
    table.note(make_turn("child", 10, program="root"), 1.0)

    grandchild, _ = table.note(make_turn("grandchild", 10, program="child"), 2.0)

    assert grandchild is not None
    assert grandchild.program == key("root")
    assert grandchild.began_s == 0.0
    assert len(table.of_program(key("root"))) == 3


def test_a_sub_agent_whose_parent_is_not_known_is_in_the_parents_program() -> None:
    table = ProgramTable(10, 10)

    child, _ = table.note(make_turn("child", 10, program="unknown"), 0.0)

    assert child is not None
    assert child.program == key("unknown")
