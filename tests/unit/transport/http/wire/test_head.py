from collections.abc import Callable
from typing import Any

import pytest

from kvmesh import _native
from kvmesh._native import Head, Names
from kvmesh.transport.http.wire.headers import Header

HEADERS: list[Header] = [
    (b"host", b"a"),
    (b"x-kvmesh-session", b"s"),
    (b"accept", b""),
    (b"host", b"b"),
    (b"x-kvmesh-", b"no name"),
]


def test_a_head_has_its_headers_by_name_and_in_order() -> None:
    head = Head(HEADERS)

    assert head.headers() == HEADERS
    assert [head.get(name) for name in (b"host", b"accept", b"acceptx", b"")] == [
        *(b"a", b""),
        *(None, None),
    ]


@pytest.mark.parametrize(
    ("names", "prefix"),
    [
        ((), b""),
        ((b"host", b"other"), b""),
        ((b"accept",), b"x-kvmesh-"),
        ((), (b"ho", b"", b"x-kvmesh-s")),
        ((), b"x-"),
        ((b"",), b""),
    ],
)
def test_names_ask_for_themselves_and_what_begins_with_their_prefix(
    names: tuple[bytes, ...], prefix: bytes | tuple[bytes, ...]
) -> None:
    head, asked, added = Head(HEADERS), Names(names, prefix), (b"t", b"1")
    prefixes = [one for one in (prefix if isinstance(prefix, tuple) else (prefix,)) if one]
    wanted = [
        one
        for one in HEADERS
        if one[0] in names or any(one[0] != at and one[0].startswith(at) for at in prefixes)
    ]
    others = [one for one in HEADERS if one not in wanted]

    assert list(head.select(asked)) == wanted
    assert head.has(asked) is bool(wanted)
    assert head.replaced(asked, (added,)).headers() == [*others, added]
    assert head.render(asked) == b"".join(b"%b: %b\r\n" % one for one in others)
    assert head.headers() == HEADERS


@pytest.mark.parametrize("header", [(b"a", b"b\r\nc: d"), (b"a\n", b"b"), (b"a", b"\r")])
def test_a_header_with_a_line_break_is_not_rendered(header: Header) -> None:
    head, nothing = Head([header]), Names((), b"")

    with pytest.raises(ValueError, match="line break"):
        head.render(nothing)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda native: native.Head([(b"a",)]),
        lambda native: native.Head([("a", "b")]),
        lambda native: native.Head(7),
        lambda native: native.Head([]).get("a"),
        lambda native: native.Head([]).select(frozenset()),
        lambda native: native.Head([]).has(None),
        lambda native: native.Head([]).render(b""),
        lambda native: native.Head([]).replaced(native.Names((), b"")),
        lambda native: native.Head([]).replaced(native.Names((), b""), [1]),
        lambda native: native.Names(("a",), b""),
        lambda native: native.Names(7, b""),
        lambda native: native.Names((), "x"),
        lambda native: native.Names((), ("x",)),
        lambda native: native.Names((), [b"x"]),
        lambda native: native.take_answer(b"", 1),
        lambda native: native.take_answer("", 1, 1, 1),
        lambda native: native.take_answer(b"", 1, 1, "x"),
        lambda native: native.take_request(b"", 1),
        lambda native: native.take_request("", 1, 1, 1, 1),
        lambda native: native.take_request(b"", 1, 1, 1, "x"),
    ],
)
def test_a_head_misused_raises(misuse: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError):
        misuse(_native)
