import pytest

from kvmesh.core.chat.opaque_text import (
    OpaqueText,
    ReadsTextError,
    Slot,
    Trace,
    opaque,
    put_texts,
)


@pytest.fixture
def trace() -> Trace:
    return Trace()


@pytest.fixture
def text(trace: Trace) -> OpaqueText:
    return opaque(trace, [Slot(0)])


def pieces(value: object) -> tuple[object, ...]:
    assert isinstance(value, OpaqueText)
    return value.pieces


def test_a_text_is_never_blank_nor_another_type(text: OpaqueText, trace: Trace) -> None:
    assert text
    assert text != ""
    assert text != " \n"
    assert text != 1
    assert text is not None
    assert not trace.absent


@pytest.mark.parametrize("value", [1, None, b""])
def test_only_texts_join_texts(text: OpaqueText, value: object) -> None:
    with pytest.raises(TypeError):
        text + value
    with pytest.raises(TypeError):
        value + text


def test_blanks_are_stripped_of_the_text_and_of_what_stands_around_it(text: OpaqueText) -> None:
    assert pieces(text.strip()) == (Slot(0, (("strip", None),)),)
    assert pieces(text.lstrip("\n").rstrip()) == (Slot(0, (("lstrip", "\n"), ("rstrip", None))),)
    assert pieces((" a" + text + " ").strip()) == ("a", Slot(0, (("rstrip", None),)))
    assert pieces((" " + text + " b ").strip()) == (Slot(0, (("lstrip", None),)), " b")


def test_what_a_text_is_asked_for_it_must_not_have(text: OpaqueText, trace: Trace) -> None:
    assert "a" not in text
    assert not text.startswith("b")
    assert not text.endswith("c")
    assert pieces(text.split("d", 1)[-1]) == (Slot(0),)
    assert pieces(text.replace("e", "x", 1)) == (Slot(0),)
    assert text != "f"
    assert list(trace.absent) == [(0, one) for one in "abcdef"]
    assert not trace.refused


@pytest.mark.parametrize(
    "use",
    [
        lambda text: text == text.strip(),
        hash,
        lambda text: {text: 1},
        len,
        list,
        lambda text: text[0],
        lambda text: text[:3],
        lambda text: text * 2,
        lambda text: 2 * text,
        lambda text: "%s" % text,  # noqa: UP031
        lambda text: text % (),
        lambda text: "%s %s" % (text, 1),  # noqa: UP031
        lambda text: f"{text}",
        str,
        lambda text: repr([text]),
        lambda text: text < "a",
        lambda text: text.upper(),
        lambda text: text.split(),
        lambda text: text.split(""),
        lambda text: text.startswith(("a", "b")),
        lambda text: text.startswith("a", 1),
        lambda text: text in text,  # noqa: PLR0124
        lambda text: text.strip("abc"),
        lambda text: text.strip(text),
        lambda text: text.format(1),
        lambda text: text.encode(),
        lambda text: "a" in "b" + text,
        lambda text: "a" in text + text,
    ],
)
def test_any_other_look_at_a_text_is_refused_and_stays_noted(
    text: OpaqueText, trace: Trace, use: object
) -> None:
    with pytest.raises(ReadsTextError):
        use(text)  # type: ignore[operator]  # one of the above

    assert trace.refused


def test_texts_are_put_where_their_keys_stand(text: OpaqueText, trace: Trace) -> None:
    other = opaque(trace, [Slot(1)])
    message = {"a": "k0", "b": [{"text": "x k0y k1"}], "c": 1, "k0": "z"}

    found = put_texts(message, {"k0": text, "k1": other})

    assert isinstance(found, dict)
    assert found.pop("a").pieces == (Slot(0),)
    assert found.pop("b")[0]["text"].pieces == ("x ", Slot(0), "y ", Slot(1))
    assert found == {"c": 1, "k0": "z"}
