from kvmesh.actors.kernel import Fields, Log
from kvmesh.actors.refusals import LOG_EVERY_S, Refusals


def test_all_is_counted_and_a_line_written_once_in_a_while() -> None:
    refusals = Refusals()

    first = list(refusals.note("kvmesh.hb.b.w", "no map", 0.0))
    silent = [list(refusals.note("x", "no map", 0.1)) for _ in range(9)]
    later = list(refusals.note("y" * 10_000, "r" * 10_000, LOG_EVERY_S))

    fields: Fields = {"from": "'kvmesh.hb.b.w'", "reason": "no map", "refused": 1}
    assert first == [Log("warning", "message refused", fields)]
    assert silent == [[]] * 9
    [line] = later
    assert isinstance(line, Log)
    assert line.fields["refused"] == 10
    assert len(str(line.fields)) < 700
    assert refusals.count == 11
