from array import array
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from kvmesh.core.chat.chat import ChatInput, KnownTools
from kvmesh.core.chat.template import ChatTemplate
from kvmesh.core.chat.template_call import ChatShape, TemplateCall, TemplateTraits
from kvmesh.core.engines.registry import engine_of
from kvmesh.core.prompts.plain_chats import NOTHING, PlainChats, Rest, packed_rest
from kvmesh.core.prompts.segment_cache import AddedToken, SegmentCache
from kvmesh.core.prompts.text_packer import MOST_MESSAGES
from kvmesh.errors import RequestError

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}</s>{% endfor %}{{ style }}"
    "{{ tools | length if tools }}{% if add_generation_prompt %}<s>assistant:{% endif %}"
)


class Clock:
    """Tells the day it is set to."""

    day = 1

    def __call__(self) -> datetime:
        return datetime(2026, 1, self.day, tzinfo=UTC)


class Texts:
    """Encodes by characters and keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, texts: Sequence[str]) -> list[bytes]:
        self.asked += texts
        return [array("I", text.encode("utf-32-le")).tobytes() for text in texts]


def make(
    source: str = TEMPLATE,
    *,
    texts: Texts | None = None,
    shape: ChatShape | None = None,
    clock: Clock | None = None,
    capacity: int = 1 << 20,
    tokens: Sequence[str] = ("<s>", "</s>"),
) -> PlainChats:
    template = ChatTemplate(source, {}, clock or Clock(), origin="test")
    added = [AddedToken(token, normalized=False) for token in tokens]
    segments = SegmentCache(added, texts or Texts(), capacity=1 << 20)
    engine = engine_of("vllm")
    return PlainChats(template, shape or engine.chat, segments, engine.chat_marks, capacity)


def pack(
    plain: PlainChats,
    *messages: str,
    generate: bool = True,
    rest: Rest = NOTHING,
    domain: str = "",
) -> str | None:
    """Return the prompt as text; messages are written `role:text`."""
    roles, texts = zip(*(message.split(":", 1) for message in messages), strict=True)
    packed = plain.pack(roles, texts, generate, rest, domain)
    return None if packed is None else packed.decode("utf-32-le")


def test_new_texts_alone_are_tokenised() -> None:
    texts = Texts()
    plain = make(texts=texts)
    texts.asked.clear()

    prompts = [pack(plain, "system:Be kind", f"user:{one}") for one in ("one", "two", "two")]

    assert prompts[1] == "<s>system:Be kind</s><s>user:two</s><s>assistant:"
    assert texts.asked == ["<s>system:Be kind", "<s>user:one", "<s>user:two"]
    assert (plain.chats, plain.reason) == (3, "")


def test_a_longer_chat_is_learned_with_its_first() -> None:
    turns = ["user:a", "assistant:b"] * 5

    assert pack(make(), *turns, generate=False) == "".join(f"<s>{turn}</s>" for turn in turns)


@pytest.mark.parametrize(
    "messages",
    [
        ["user:"],
        ["user: \n"],
        ["user:a", "user:"],
        ["stranger:a"],
        ["user:a"] * (MOST_MESSAGES + 1),
        ["system:x-anthropic-billing-header: 1\nBe kind", "user:a"],
    ],
)
def test_what_was_not_learned_is_rendered(messages: list[str]) -> None:
    plain = make()

    assert pack(plain, *messages) is None
    assert (plain.chats, plain.reason) == (0, "")


def test_usual_chats_of_known_forms_are_packed_at_once() -> None:
    plain = make()

    assert plain.packer.pack([("user", "a <b")]) == plain.pack(
        ("user",), ["a <b"], True, NOTHING, ""
    )
    assert plain.packer.pack([("user", "a<s>b")]) is None
    assert plain.packer.pack([("user", "a"), ("user", "b")]) is None
    assert pack(plain, "user:a", "user:b") is not None
    assert plain.packer.pack([("user", "a"), ("user", "b")]) is not None
    assert (plain.packer.packed, plain.chats) == (2, 2)


def test_many_tokens_are_looked_for_by_their_beginnings() -> None:
    plain = make(tokens=["<s>", "</s>", *(f"<|reserved_{number}|>" for number in range(100))])

    assert plain.packer.pack([("user", "a < b <i> <r> |>")]) is not None
    assert plain.packer.pack([("user", "a <|reserved_7|>")]) is None
    assert pack(plain, "user:a <|reserved_7|>") == "<s>user:a <|reserved_7|></s><s>assistant:"


def test_who_comes_while_a_shape_is_learned_is_rendered() -> None:
    found: list[str | None] = []

    class Coming(Clock):
        def __call__(self) -> datetime:
            if plain is not None and not found:
                found.append("")
                found.append(pack(plain, "user:b", "user:c"))
            return super().__call__()

    plain: PlainChats | None = None
    plain = make("{{ strftime_now('%d') }}{{ messages[-1].content }}", clock=Coming())

    assert (pack(plain, "user:a", "assistant:b"), found) == ("01b", ["", None])
    assert pack(plain, "user:b", "user:c") == "01c"


def test_tools_and_arguments_have_their_own_prompt() -> None:
    plain = make()

    assert pack(plain, "user:a", rest=Rest(chat_template_kwargs={"style": "loud"})) == (
        "<s>user:a</s>loud<s>assistant:"
    )
    assert pack(plain, "user:a", rest=Rest(tools=[{"function": {"name": "f"}}])) == (
        "<s>user:a</s>1<s>assistant:"
    )
    assert pack(plain, "user:a") == "<s>user:a</s><s>assistant:"
    assert pack(plain, "user:a", rest=Rest(chat_template_kwargs={"style": 1 << 70})) is None


def test_a_date_is_printed_as_it_is_today() -> None:
    clock = Clock()
    plain = make("{{ strftime_now('%d') }}<s>{{ messages[0].content }}", clock=clock)

    assert pack(plain, "user:a") == pack(plain, "user:a") == "01<s>a"
    clock.day = 2
    assert pack(plain, "user:a") == "02<s>a"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ messages[0].content | upper }}", "user: uses filter upper on a text"),
        ("{{ raise_exception('no') }}", ""),
        ("{% if messages[0].content | length %}{% endif %}", "user: uses __len__ of a text"),
    ],
)
def test_a_template_that_must_run_says_why(source: str, reason: str) -> None:
    plain = make(source)

    assert pack(plain, "user:a") is None
    assert plain.reason == reason


def test_a_shape_that_refuses_or_continues_is_rendered() -> None:
    def refusing(_chat: ChatInput, _template: TemplateTraits) -> TemplateCall:
        raise RequestError("no")

    def continuing(chat: ChatInput, _template: TemplateTraits) -> TemplateCall:
        return TemplateCall(chat.messages, suffix="more")

    assert make(shape=refusing).reason == ""
    assert make(shape=continuing).reason == "user: the engine continues the last message"


def test_a_shape_that_alters_texts_is_found_by_probes() -> None:
    def shouting(chat: ChatInput, _template: TemplateTraits) -> TemplateCall:
        texts = [str(message["content"]).replace("Probe", "PROBE") for message in chat.messages]
        return TemplateCall([{"role": "user", "content": text} for text in texts])

    plain = make(shape=shouting)

    assert plain.reason == "user: a probe was rendered otherwise than expected"
    assert pack(plain, "user:a") is None


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("{{ messages[0].content }}", "a"),
        ("{{ messages[0].content }}</s>b", "a</s>b"),
        ("{{ messages[0].content }}b<s>", "ab<s>"),
        ("b{{ messages[0].content }}c</s>", "bac</s>"),
        ("<s>{{ messages[0].content | trim }}", "<s>a"),
        ("b", "b"),
        ("", ""),
    ],
)
def test_a_text_may_stand_anywhere(source: str, wanted: str) -> None:
    assert pack(make(source), "user:a") == wanted


def test_what_is_known_in_one_domain_is_tokenised_anew_in_another() -> None:
    texts = Texts()
    plain = make(texts=texts)
    texts.asked.clear()

    prompts = {pack(plain, "user:a", domain=domain) for domain in ("", "ann", "ann", "ben")}

    assert (prompts, texts.asked) == ({"<s>user:a</s><s>assistant:"}, ["<s>user:a"] * 3)


def test_little_room_keeps_the_shapes_used_last() -> None:
    plain = make(capacity=4000)

    for length in range(1, 30):
        for turns in (["user:a"], ["user:a"] * length):
            wanted = "".join(f"<s>{turn}</s>" for turn in turns)
            assert pack(plain, *turns) == f"{wanted}<s>assistant:"

    assert plain.chats == 58
    assert pack(make("{{ messages[0].content | upper }}", capacity=10), "user:a") is None


def test_tools_that_were_read_before_are_packed_once_and_apart_from_others() -> None:
    one, other = KnownTools([{"type": "a"}]), KnownTools([{"type": "b"}])
    rests = [Rest(), Rest(one), Rest(other), Rest(one, tool_choice="none"), Rest([*one])]

    assert len(set(map(packed_rest, rests))) == len(rests)
    assert packed_rest(Rest(one)) == packed_rest(Rest(KnownTools([*one])))
    assert packed_rest(Rest(KnownTools([{"type": 1 << 70}]))) is None
