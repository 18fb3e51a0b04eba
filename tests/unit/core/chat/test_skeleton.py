import pytest

from kvmesh.core.chat.opaque_text import Slot
from kvmesh.core.chat.skeleton import Skeleton, merged

SKELETON = Skeleton(
    ("<", Slot(1, (("lstrip", "\n"), ("rstrip", None))), "|", Slot(0), ">"), absent=((0, "x"),)
)


def test_texts_are_filled_in_as_the_template_prints_them() -> None:
    assert SKELETON.fill([" a ", "\n b \n"]) == "< b| a >"


@pytest.mark.parametrize(
    ("texts", "holds"),
    [(["a", "x"], True), (["ax", "b"], False), (["", "b"], False), (["a", " \n"], False)],
)
def test_it_holds_for_texts_without_blank_ones_and_marks(texts: list[str], holds: bool) -> None:
    assert SKELETON.holds_for(texts) is holds


def test_literals_side_by_side_become_one() -> None:
    assert merged(["a", "b", Slot(0), Slot(1), "c", "d"]) == ("ab", Slot(0), Slot(1), "cd")
    assert merged([Slot(0)]) == (Slot(0),)
    assert merged([]) == merged([""]) == ()
