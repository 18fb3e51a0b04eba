"""What is rendered as a whole, and what is kept of prints."""

import json
import tracemalloc
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from kvmesh._native import scan
from kvmesh.core.chat.chat import ChatInput, KnownMessage
from kvmesh.core.chat.known_chats import KnownChats
from kvmesh.core.chat.template import ChatTemplate
from kvmesh.core.engines.registry import EngineKind, engine_of
from kvmesh.core.prompts import message_packer
from kvmesh.core.prompts.message_packer import MOST_CHARACTERS, MessagePacker
from kvmesh.core.prompts.segment_cache import AddedToken, SegmentCache

LOOP = "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}{% endfor %}"
TURNS = (("user", "Hi"), ("assistant", "Ho"), ("user", "?"))
SAID = [{"role": role, "content": content} for role, content in TURNS]


class Chats:
    """Chats of one template, whose ids are the text, each byte `width` times."""

    def __init__(self, source: str, engine: EngineKind = "vllm", width: int = 1) -> None:
        self.width = width
        self.known = KnownChats(1 << 20)
        self.tokenized: list[str] | deque[str] = []
        template = ChatTemplate(source, {}, lambda: datetime(2026, 1, 2, tzinfo=UTC), origin="t")
        segments = SegmentCache(
            [AddedToken("<s>", normalized=False)], self._encode, capacity=1 << 20
        )
        self.packer = MessagePacker(template, engine_of(engine).chat, segments)

    def _encode(self, texts: Sequence[str]) -> list[bytes]:
        self.tokenized.extend(texts)
        return [bytes(byte for byte in text.encode() for _ in range(self.width)) for text in texts]

    def read(self, messages: list[Any], **fields: object) -> ChatInput:
        scanned = scan(json.dumps({"messages": messages, **fields}).encode(), True)
        assert scanned is not None
        found = self.known.read(scanned, "")
        assert found is not None
        return found[1]

    def say(self, messages: list[Any], **fields: object) -> str | None:
        packed = self.packer.pack(self.read(messages, **fields), "")
        return None if packed is None else packed[:: self.width].decode()


def test_a_next_turn_prints_and_tokenizes_what_is_new() -> None:
    chats = Chats(LOOP + "{% if add_generation_prompt %}<s>assistant:{% endif %}")

    assert chats.say(SAID[:1]) == "<s>user:Hi<s>assistant:"
    first = chats.read(SAID).messages[0]
    assert isinstance(first, KnownMessage)
    seen, ids = first.seen, first.ids
    assert chats.say(SAID) == "<s>user:Hi<s>assistant:Ho<s>user:?<s>assistant:"
    assert first.seen is seen
    assert first.ids is ids
    assert chats.tokenized == ["<s>user:Hi", "<s>assistant:", "<s>assistant:Ho", "<s>user:?"]


def test_other_fields_and_values_are_other_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_packer, "MOST_CONTEXTS", 2)
    value = "{% set v = namespace(x=messages | length) %}{% set w = wide %}"
    chats = Chats(value + LOOP.replace(":", ":{{ v.x }}{{ w }}{{ wide }}"))

    for wide in (1, True, 1.0, "1", None, 1):
        kwargs = {"wide": wide}
        for count in (1, 2):
            expected = "".join(
                f"<s>{one['role']}:{count}{wide}{wide}{one['content']}" for one in SAID[:count]
            )
            assert chats.say(SAID[:count], chat_template_kwargs=kwargs) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages }}",
        "<" + LOOP,
        LOOP + "tail",
        LOOP.replace("<s>", ""),
        "{% set v = messages %}" + LOOP.replace("<s>", "<s>{{ v }}"),
        "{% set v = 'x' * 5000 %}" + LOOP.replace("<s>", "<s>{{ v }}"),
        LOOP.replace("m.role", "m.role.x.y"),
    ],
)
def test_what_cannot_be_put_together_is_rendered_as_a_whole(source: str) -> None:
    assert MOST_CHARACTERS < 5000
    chats = Chats(source)

    assert chats.say(SAID) is None
    assert chats.say(SAID) is None


def test_a_print_that_ends_open_is_remembered_as_such() -> None:
    chats = Chats(LOOP)

    assert chats.say([{"role": "user", "content": "a <"}, *SAID]) is None
    assert chats.say([*SAID, {"role": "user", "content": "a <"}]) is None
    assert chats.read([{"role": "user", "content": "a <"}]).messages[0].seen is None  # type: ignore[attr-defined]
    assert chats.say(SAID) is not None


def test_chats_that_end_otherwise_or_are_not_known_are_rendered_as_a_whole() -> None:
    chats, other = Chats(LOOP), Chats(LOOP, "sglang")
    media = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    plain = ChatInput([dict(one) for one in SAID])

    assert chats.say(SAID[:2], continue_final_message=True, add_generation_prompt=False) is None
    assert chats.say([*SAID, *media]) is None
    assert chats.packer.pack(plain, "") is None
    assert other.say(SAID[:2]) is None
    assert other.say(SAID[:2], continue_final_message=True) is None
    assert other.say(SAID) is not None


def test_ids_longer_than_what_they_were_made_of_are_not_kept() -> None:
    chats = Chats(LOOP, width=2)
    long = [{"role": "user", "content": "x" * 1000}]

    for _ in range(2):
        assert chats.say(long) == "<s>user:" + "x" * 1000
    one = chats.read(long).messages[0]
    assert isinstance(one, KnownMessage)
    assert (one.seen, one.ids) == ((), b"")


def test_tools_of_other_numbers_are_other_contexts() -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in "ab"]
    chats = Chats(LOOP.replace("<s>", "<s>{{ tools[0].function.name }}"))

    assert [chats.say(SAID[:1], tools=[one]) for one in (*tools, tools[0])] == [
        "<s>auser:Hi",
        "<s>buser:Hi",
        "<s>auser:Hi",
    ]


def test_what_is_kept_of_messages_and_prints_is_bounded() -> None:
    chats = Chats(LOOP)
    chats.known = KnownChats(1 << 18)
    chats.tokenized = deque(maxlen=1)
    tracemalloc.start()
    try:
        for number in range(4000):
            said = f"{number} " * 100
            assert chats.say([{"role": "user", "content": said}]) == f"<s>user:{said}"
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    # What was said takes 2 MB as text alone; the ids of segments may take 1 MB.
    assert kept < (1 << 20) + 2 * (1 << 18)
