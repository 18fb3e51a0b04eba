"""What had passed behind an event, by the marks that it left."""

from array import array

import msgspec

from kvmesh.core.chat.kept import Kept
from kvmesh.core.chat.stream_marks import behind_again, count_events, cut_behind, end_of_event

CONTENT, REASONING, ARGUMENTS, CALLS, NOTHING = range(5)
MORE, FINISHED = 8, 16


def mark(kind: int, size: int = 0, ids: int = 0, digest: int = 0, flags: int = 0) -> bytes:
    return array("I", [kind | flags | ids << 8 | size << 16, digest]).tobytes()


ROLE = mark(NOTHING)
WHY = mark(REASONING, 3, 1, 7)
CALL = mark(ARGUMENTS, 2, 1, 8, MORE) + mark(CALLS, 1)
TEXT = mark(CONTENT, 5, 2, 9)
END = mark(NOTHING, flags=FINISHED)
MARKS = ROLE + WHY + CALL + TEXT + END + END
KEPT = Kept(b"\1\0\0\0", array("I", [1, 2, 3, 4]).tobytes(), choices=1, marks=MARKS)


def test_events_are_counted_and_found() -> None:
    assert (count_events(MARKS), count_events(bytearray())) == (6, 0)
    assert [end_of_event(MARKS, number) for number in (0, 1, 3, 6, 7)] == [0, 8, 32, 56, -1]


def test_behind_each_event_is_known_what_had_passed() -> None:
    cuts = [cut_behind(KEPT, number) for number in range(8)]
    found = [one.kept for one in cuts if one is not None]

    assert cuts[7] is None
    assert [len(one.token_ids) // 4 for one in found] == [0, 0, 1, 2, 4, 4, 4]
    assert [one.reasoning_bytes for one in found] == [0, 0, 3, 3, 3, 3, 3]
    assert [one.arguments_bytes for one in found] == [0, 0, 0, 2, 2, 2, 2]
    assert [one.tool_calls for one in found] == [0, 0, 0, 1, 1, 1, 1]
    assert [one.content_hash for one in found] == [0, 0, 0, 0, 9, 9, 9]
    assert [one.finished for one in found] == [False] * 5 + [True] * 2
    assert [one.ended for one in cuts if one is not None] == [False] * 6 + [True]
    assert found[0].is_empty
    assert {one.prompt_ids for one in found} == {b"\1\0\0\0"}


def test_marks_of_an_answer_that_came_again_are_those_behind_what_was_left_out() -> None:
    before = cut_behind(KEPT, 4)
    assert before is not None

    assert behind_again(before.kept, KEPT, 4) == END + END
    assert (behind_again(before.kept, KEPT, 3), behind_again(before.kept, KEPT, 7)) == (b"", b"")
    for name in ("reasoning_bytes", "arguments_bytes", "tool_calls"):
        other = msgspec.structs.replace(before.kept, **{name: 1 + getattr(before.kept, name)})
        assert behind_again(other, KEPT, 4) == b""
