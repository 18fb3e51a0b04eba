"""The compiled packer of chats and its cache do what the naive ones do, and survive misuse."""

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvmesh import _native
from kvmesh._native import TextCache, TextPacker
from kvmesh.core.prompts.segment_cache import ByteBudgetCache
from tests.reference.prompts import text_packer as naive

native: Any = _native
LETTERS = ("", "a", "b", " ", "\n", "<", "\u00e9", "\u3000", "\u4f60", "\U0001f642", "long " * 9)
TEXT = st.lists(st.sampled_from(LETTERS), max_size=4).map("".join)
ROLES = st.lists(st.sampled_from(["user", "system", "assistant"]), min_size=1, max_size=3)
STRIP: Any = st.tuples(
    st.sampled_from(["strip", "lstrip", "rstrip"]), st.sampled_from([None, " ", "\n"])
)


def encode(texts: Sequence[str]) -> list[bytes]:
    return [text.encode() for text in texts]


class Packers(RuleBasedStateMachine):
    """Both are taught, asked and made to forget the same."""

    @initialize(capacity=st.sampled_from([1, 700, 2_000, 100_000]))
    def start(self, capacity: int) -> None:
        self.cache = ByteBudgetCache[str](capacity)
        self.naive = naive.TextPacker(self.cache, encode)
        self.native_cache = TextCache(capacity)
        self.native = TextPacker(self.native_cache, encode)

    @rule(roles=ROLES, hints=st.lists(st.sampled_from(["<", "ab"])), data=st.data())
    def teach(self, roles: list[str], hints: list[str], data: st.DataObject) -> None:
        marks = data.draw(st.lists(st.sampled_from(["<a", "<", "ab"])))
        parts = data.draw(st.lists(st.binary(max_size=3), min_size=1, max_size=4))
        places = data.draw(st.lists(st.integers(0, len(parts) - 1), unique=True))
        openings = tuple(
            (
                place,
                data.draw(TEXT),
                data.draw(st.integers(0, len(roles) - 1)),
                tuple(data.draw(st.lists(STRIP, max_size=2))),
                data.draw(TEXT),
            )
            for place in places
        )
        for one in (self.naive, self.native):
            one.teach(tuple(roles), tuple(hints), tuple(marks), tuple(parts), openings)

    @rule(roles=ROLES, data=st.data(), as_dicts=st.booleans())
    def pack(self, roles: list[str], data: st.DataObject, as_dicts: bool) -> None:
        messages: list[Any] = [(role, data.draw(TEXT)) for role in roles]
        if as_dicts:
            messages = [{"role": role, "content": text} for role, text in messages]

        assert self.native.pack(messages) == self.naive.pack(messages)

    @rule()
    def forget(self) -> None:
        self.naive.forget()
        self.native.forget()

    @rule(text=TEXT, ids=st.binary(max_size=300))
    def put(self, text: str, ids: bytes) -> None:
        self.cache.put(text, ids)
        self.native_cache.put(text, ids)

    @rule(text=TEXT)
    def get(self, text: str) -> None:
        assert self.native_cache.get(text) == self.cache.get(text)

    @invariant()
    def counts_are_equal(self) -> None:
        assert self.native.packed == self.naive.packed
        assert self.native_cache.figures() == self.cache.figures()


TestPackers = Packers.TestCase

USER = (("user",), (), (), (b"",), ((0, "", 0, (), ""),))


def packer(encode_batch: object = encode) -> Any:
    made = native.TextPacker(native.TextCache(1000), encode_batch)
    made.teach(*USER)
    return made


@pytest.mark.parametrize(
    "misuse",
    [
        lambda: native.TextCache("many"),
        lambda: native.TextCache(9).get(1),
        lambda: native.TextCache(9).put("a"),
        lambda: native.TextCache(9).put("a", "b"),
        lambda: native.TextCache(9).put(b"a", b"b"),
        lambda: native.TextPacker(ByteBudgetCache[str](9), encode),
        lambda: native.TextPacker(native.TextCache(9)),
        lambda: packer().teach(()),
        lambda: packer().teach(["user"], (), (), (), ()),
        lambda: packer().teach(("user",), (1,), (), (), ()),
        lambda: packer().teach(("user",), (), (1,), (), ()),
        lambda: packer().teach(("user",), (), (), ("",), ()),
        lambda: packer().teach(("user",), (), (), (b"",), (1,)),
        lambda: packer().teach(("user",), (), (), (b"",), ((0, "", 0, ()),)),
        lambda: packer().teach(("user",), (), (), (b"",), (("0", "", 0, (), ""),)),
        lambda: packer().teach(("user",), (), (), (b"",), ((0, b"", 0, (), ""),)),
        lambda: packer().teach(("user",), (), (), (b"",), ((0, "", 0, [], ""),)),
        lambda: packer().teach(("user",), (), (), (b"",), ((0, "", 0, (1,), ""),)),
        lambda: packer().teach(("user",), (), (), (b"",), ((0, "", 0, (("strip", 1),), ""),)),
        lambda: packer().teach(("user",), (), (), (b"",), ((0, "", 0, (("strip",),), ""),)),
        lambda: packer(1).pack([("user", "a")]),
        lambda: packer(lambda _: 1).pack([("user", "a")]),
        lambda: packer(lambda _: ["a"]).pack([("user", "a")]),
    ],
)
def test_misuse_is_a_type_error(misuse: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        misuse()


def test_a_number_beyond_all_bounds_is_an_error() -> None:
    with pytest.raises(OverflowError):
        packer().teach(("user",), (), (), (b"",), ((1 << 80, "", 0, (), ""),))
    with pytest.raises(AttributeError):
        packer().packed = 1


def test_a_strip_that_gives_no_text_is_an_error() -> None:
    made = packer()
    made.teach(("user",), (), (), (b"",), ((0, "", 0, (("split", None), ("strip", None)), ""),))
    made.teach(("system",), (), (), (b"",), ((0, "", 0, (("strap", None),), ""),))

    with pytest.raises(TypeError, match="a strip gives a str"):
        made.pack([("user", "a")])
    with pytest.raises(AttributeError):
        made.pack([("system", "a")])


@pytest.mark.parametrize("made", [[], [b"a", b"b"]])
def test_a_tokenizer_that_answers_for_other_texts_is_an_error(made: list[bytes]) -> None:
    with pytest.raises(ValueError, match=f"{len(made)} texts were tokenised of 1"):
        packer(lambda _: made).pack([("user", "a")])


def test_a_tokenizer_that_alters_what_it_is_given_is_an_error() -> None:
    def emptying(texts: list[str]) -> list[bytes]:
        found = encode(texts)
        texts.clear()
        return found

    with pytest.raises(ValueError, match="were tokenised"):
        packer(emptying).pack([("user", "a")])


def test_a_tokenizer_may_alter_the_packer_meanwhile() -> None:
    def forgetting(texts: Sequence[str]) -> list[bytes]:
        made.forget()
        made.teach(("user",), (), (), (b"x", b""), ((1, "", 0, (), ""),))
        return encode(texts)

    made = packer(forgetting)

    assert made.pack([("user", "a")]) == b"a"
    assert made.pack([("user", "a")]) == b"xa"


def test_messages_may_change_while_they_are_read() -> None:
    class Key(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            messages.clear()
            return False

    messages: list[Any] = [{Key("role"): "user", "content": "a"}, ("user", "b")]
    made = packer()
    made.teach(("user", "user"), (), (), (b"",), ())

    assert made.pack(messages[:1]) is None
    messages[:] = [("user", "b"), {Key("role"): "user", "content": "a"}, ("user", "b")]
    assert made.pack(messages) is None


ANYTHING = st.recursive(
    st.none() | st.text(max_size=2) | st.integers() | st.just("user"),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from(["role", "content", "x"]), inner)
    ),
    max_leaves=6,
)


@given(messages=ANYTHING)
@example(messages=[{"role": "user", "content": "user"}])
def test_anything_is_packed_or_left(messages: Any) -> None:
    packed = packer().pack(messages)

    if packed is not None:
        first = messages[0]
        assert packed == (first["content"] if isinstance(first, dict) else first[1]).encode()


def test_a_packer_that_knows_itself_is_collected() -> None:
    class Encode:
        def __call__(self, texts: Sequence[str]) -> list[bytes]:
            return encode(texts)

    own: Any = Encode()
    own.packer = packer(own)
    gone = weakref.ref(own)

    del own
    gc.collect()

    assert gone() is None
