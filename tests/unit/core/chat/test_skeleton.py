import pytest

from kvmesh.core.chat.opaque_text import Slot
from kvmesh.core.chat.skeleton import Skeleton

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
