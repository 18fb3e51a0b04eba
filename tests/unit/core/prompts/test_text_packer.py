from collections.abc import Sequence

import pytest

from kvmesh._native import TextCache, TextPacker
from kvmesh.core.prompts.text_packer import (
    Message,
    filled,
    roles_and_texts,
)


class Encoder:
    """Encodes as UTF-8 and keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, texts: Sequence[str]) -> list[bytes]:
        self.asked.append([*texts])
        return [text.encode() for text in texts]


@pytest.fixture
def encoder() -> Encoder:
    return Encoder()


@pytest.fixture
def packer(encoder: Encoder) -> TextPacker:
    packer = TextPacker(TextCache(10_000), encoder)
    packer.teach(
        ("system", "user"),
        ("<",),
        ("<b", "<c"),
        (b"[", b"", b"|", b""),
        ((1, "S", 0, (("lstrip", "\n"), ("rstrip", None)), "s"), (3, "U", 1, (), "")),
    )
    return packer


def chat(system: str, user: str) -> list[Message]:
    return [("system", system), {"role": "user", "content": user}]


def test_texts_stand_where_the_form_has_them(packer: TextPacker, encoder: Encoder) -> None:
    assert packer.pack(chat("\n be \u00fc \n", "hi")) == "[S be \u00fcs|Uhi".encode()
    assert packer.pack(chat("\n be \u00fc \n", "ho")) == "[S be \u00fcs|Uho".encode()
    assert packer.pack(tuple(chat("\n be \u00fc \n", "ho"))) == "[S be \u00fcs|Uho".encode()

    assert packer.pack(chat("\n be \u00fc \n", "a <d")) == "[S be \u00fcs|Ua <d".encode()

    assert (encoder.asked, packer.packed) == ([["S be \u00fcs", "Uhi"], ["Uho"], ["Ua <d"]], 4)


def test_what_is_forgotten_may_be_taught_anew(packer: TextPacker) -> None:
    packer.forget()
    assert packer.pack(chat("a", "b")) is None

    packer.teach(("system", "user"), (), (), (b"x",), ())
    assert packer.pack(chat("a", "b")) == b"x"


@pytest.mark.parametrize(("place", "index"), [(-1, 0), (1, 0), (0, -1), (0, 1)])
def test_an_opening_outside_the_form_is_refused(packer: TextPacker, place: int, index: int) -> None:
    with pytest.raises(ValueError, match=f"opening {place} of text {index} is outside the form"):
        packer.teach(("user",), (), (), (b"",), ((place, "", index, (), ""),))


def test_texts_are_filled_in_and_roles_told_apart() -> None:
    assert filled((0, "<", 1, (("strip", None),), ">"), ["a", " b "]) == "<b>"
    assert roles_and_texts(chat("a", "b")) == (("system", "user"), ["a", "b"])
    assert roles_and_texts([{"role": "user"}]) is None
