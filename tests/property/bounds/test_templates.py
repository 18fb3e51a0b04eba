"""What clients put into chat templates, and what is learned of these: at ten times each bound."""

from array import array
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pytest

from kvmesh.core.chat.chat import JsonObject
from kvmesh.core.chat.skeleton import Skeleton
from kvmesh.core.chat.template import ChatTemplate
from kvmesh.core.chat.template_call import TemplateCall
from kvmesh.core.engines.registry import engine_of
from kvmesh.core.prompts.plain_chats import NOTHING, PlainChats, Rest
from kvmesh.core.prompts.segment_cache import AddedToken, SegmentCache
from kvmesh.core.prompts.text_packer import MOST_MESSAGES
from kvmesh.errors import RequestError
from tests.property.bounds.work import assert_linear

CHATML = (
    "{% for m in messages %}{% if '<think>' in m.content %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endif %}{% endfor %}"
    "{{ tools | tojson if tools }}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GROWING = (
    "{% set ns = namespace(all='') %}{% for m in messages %}{% set ns.all = ns.all + m.content %}"
    "{% endfor %}{{ ns.all }}"
)
"""Joins texts one by one, as many a template does."""


def template(source: str = CHATML) -> ChatTemplate:
    return ChatTemplate(source, {}, lambda: datetime(2026, 1, 1, tzinfo=UTC), origin="test")


def encode(texts: Sequence[str]) -> list[bytes]:
    return [array("I", text.encode("utf-32-le")).tobytes() for text in texts]


def plain_chats(source: str = CHATML, capacity: int = 1 << 20) -> PlainChats:
    added = [AddedToken(token, normalized=False) for token in ("<|im_start|>", "<|im_end|>")]
    engine = engine_of("vllm")
    segments = SegmentCache(added, encode, capacity=1 << 20)
    return PlainChats(template(source), engine.chat, segments, engine.chat_marks, capacity)


def chat(texts: Sequence[str]) -> list[JsonObject]:
    return [{"role": "user", "content": text} for text in texts]


TEXTS: dict[str, Callable[[int], list[str]]] = {
    "one long text": lambda size: ["x" * size],
    "many texts": lambda size: ["x"] * (size // 10),
    "marks": lambda size: ["<think>" * (size // 7)],
    "half of marks": lambda size: ["<|im_star" * (size // 9)],
    "blanks": lambda size: [" " * size + "x" + " " * size],
    "no blank but one": lambda size: ["\u00a0" * size],
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_rendered_chat_costs_as_its_bytes(kind: str) -> None:
    made = template()

    def make(size: int) -> Callable[[], object]:
        call = TemplateCall(chat(TEXTS[kind](size)), variables={})
        return lambda: made.render(call)

    assert_linear(make, 50_000)


def nested(depth: int) -> list[JsonObject]:
    value: JsonObject = {}
    for _ in range(depth):
        value = {"a": value}
    return [value]


def test_tools_that_nest_without_end_are_refused_and_rendered_as_their_bytes_below() -> None:
    made = template()

    def make(size: int) -> Callable[[], object]:
        call = TemplateCall(chat(["x"]), tools=[{"a": "b" * 10}] * size)
        return lambda: made.render(call)

    assert_linear(make, 1_000)
    with pytest.raises(RequestError, match="recursion"):
        made.render(TemplateCall(chat(["x"]), tools=nested(10_000)))


@pytest.mark.parametrize("kind", TEXTS)
def test_a_chat_of_a_learned_template_costs_as_its_bytes(kind: str) -> None:
    plain = plain_chats()

    def make(size: int) -> Callable[[], object]:
        texts = TEXTS[kind](size)[:MOST_MESSAGES]
        roles = ("user",) * len(texts)
        plain.pack(roles, ["x"] * len(texts), True, NOTHING, "")
        return lambda: plain.pack(roles, texts, True, NOTHING, "")

    assert_linear(make, 20_000)


@pytest.mark.parametrize("source", [CHATML, GROWING])
def test_what_a_template_prints_is_learned_as_the_messages_are_many(source: str) -> None:
    made = template(source)

    def make(size: int) -> Callable[[], object]:
        keys = [f"\ue000{one}\ue001" for one in range(size)]
        call = TemplateCall(chat(keys))
        found = made.outline(call, keys)
        assert isinstance(found, Skeleton)
        return lambda: made.outline(call, keys)

    assert_linear(make, MOST_MESSAGES // 10)


def test_chats_of_ten_times_the_messages_are_not_learned() -> None:
    plain = plain_chats()
    texts = ["x"] * (10 * MOST_MESSAGES)

    def make(size: int) -> Callable[[], object]:
        roles = ("user",) * size
        return lambda: plain.pack(roles, texts[:size], True, NOTHING, "")

    assert plain.pack(("user",) * len(texts), texts, True, NOTHING, "") is None
    assert_linear(make, MOST_MESSAGES + 1)


def test_ten_times_the_forms_for_which_there_is_room_are_forgotten_in_turn() -> None:
    """A client can make up as many forms as it likes: roles, tools, arguments of the template."""
    capacity = 100_000
    plain = plain_chats(capacity=capacity)
    kept: list[int] = []

    for number in range(1_000):
        tools: list[JsonObject] = [{"name": f"{number}" + "x" * 1_000}]
        assert plain.pack(("user",), ["x"], True, Rest(tools=tools), "") is not None
        kept.append(plain._size)

    assert max(kept) <= capacity
    assert len(plain._plans) + len(plain._old) < 100


def test_a_form_larger_than_all_room_is_not_kept() -> None:
    plain = plain_chats(capacity=1 << 14)
    before = plain._size
    tools: list[JsonObject] = [{"name": "x" * (10 << 14)}]

    assert plain.pack(("user",), ["x"], True, Rest(tools=tools), "") is not None

    assert plain._size == before
