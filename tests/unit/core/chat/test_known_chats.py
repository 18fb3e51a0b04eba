"""Messages that were read before are read as if they had not been."""

import json
import random
from typing import Any

import pytest

from kvmesh._native import scan
from kvmesh.core.chat import known_chats
from kvmesh.core.chat.chat import ChatInput, KnownMessage
from kvmesh.core.chat.inference import InferenceRequest, chat_fields, read_chat
from kvmesh.core.chat.known_chats import KnownChats
from kvmesh.core.chat.template_call import TemplateTraits
from kvmesh.core.engines.registry import ENGINES, EngineKind
from kvmesh.errors import RequestError

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
MESSAGES: list[Any] = [
    {"role": "system", "content": "You are kind."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "Zwei ü"}],
    },
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "assistant", "content": "Hm", "reasoning_content": "why", "tool_calls": [CALL, CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "42"},
    {"role": "user", "content": "And?", "name": "me"},
    {"role": "developer", "content": "Be short.", "tools": [TOOL]},
    {"role": "user", "content": ""},
]
STRANGE: list[Any] = [
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
    {"role": 1, "content": "a"},
    {"role": "assistant", "content": None, "tool_calls": 3},
    {"role": "assistant", "content": None, "tool_calls": [{"function": 3}]},
    3,
    None,
]


class Template(TemplateTraits):
    knows_developer = False

    def content_format(self, _: object) -> Any:
        return "openai"

    def wants_system_first(self, _: object) -> bool:
        return False


def strictly(body: bytes) -> object:
    """Return what a chat says, read as a whole; None or an error where something is wrong."""
    try:
        parsed = read_chat(body)
        return None if parsed is None else ChatInput.of(chat_fields(parsed.messages, parsed))
    except RequestError as error:
        return str(error), error.param


def read(known: KnownChats, body: bytes, domain: str) -> tuple[InferenceRequest, ChatInput] | None:
    scanned = scan(body, True)
    return None if scanned is None else known.read(scanned, domain)


def by_parts(known: KnownChats, body: bytes, domain: str) -> object:
    try:
        found = read(known, body, domain)
        return None if found is None else found[1]
    except RequestError as error:
        return str(error), error.param


def chats(seed: int) -> list[bytes]:
    """Return bodies of conversations that grow, now and then with something wrong in them."""
    rng = random.Random(seed)
    bodies = []
    for _ in range(40):
        messages: list[Any] = []
        fields: dict[str, Any] = {"model": "m"}
        if rng.random() < 0.5:
            fields["tools"] = rng.choice([[TOOL], [TOOL, TOOL], [], None, [3], "tools"])
        if rng.random() < 0.3:
            fields["add_generation_prompt"] = rng.choice([True, False, None, "yes"])
        if rng.random() < 0.2:
            fields["n"] = rng.choice([0, 1])
        for _ in range(rng.randrange(1, 6)):
            messages.append(rng.choice(STRANGE if rng.random() < 0.06 else MESSAGES))
            bodies.append(json.dumps(fields | {"messages": messages}).encode())
    rng.shuffle(bodies)
    return bodies


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("seed", range(6))
def test_what_was_read_before_is_read_and_shaped_alike(seed: int, kind: EngineKind) -> None:
    known, rng = KnownChats(1 << 20), random.Random(seed)
    read = 0
    for body in chats(seed):
        expected = strictly(body)
        found = by_parts(known, body, rng.choice(["", "", "salt"]))
        if not isinstance(expected, ChatInput):
            # What is wrong is for the strict parser to say.
            assert not isinstance(found, ChatInput)
            continue
        assert found == expected
        assert isinstance(found, ChatInput)
        read += 1
        shape = ENGINES[kind].chat
        assert shape(found, Template()) == shape(expected, Template())
    assert read > 40


def test_a_next_turn_has_the_messages_of_the_turn_before() -> None:
    known = KnownChats(1 << 20)
    first, second = (
        read(known, json.dumps({"messages": MESSAGES[:count]}).encode(), "") for count in (5, 6)
    )
    other = read(known, json.dumps({"messages": MESSAGES[:5]}).encode(), "salt")

    assert first is not None
    assert second is not None
    assert other is not None
    for one, again, apart in zip(
        first[1].messages, second[1].messages, other[1].messages, strict=False
    ):
        assert one is again
        assert one is not apart
        assert isinstance(one, KnownMessage)


def test_what_is_said_again_before_many_others_is_kept() -> None:
    known = KnownChats(1 << 16)

    def say(text: str) -> object:
        body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
        found = read(known, body, "")
        assert found is not None
        return found[1].messages[0]

    first = say("first")
    for round_ in range(4):
        for number in range(20):
            say(f"{round_} {number}")
        assert say("first") is first
    for number in range(80):
        say(f"others {number}")
    assert say("first") is not first


def test_what_is_too_long_to_keep_is_read_all_the_same() -> None:
    known = KnownChats(1 << 14)
    for number in range(6):
        said = [{"role": "user", "content": f"{number % 3}" * (5000 if number % 2 else 900)}]
        found = read(known, json.dumps({"messages": said, "tools": [TOOL]}).encode(), "")
        assert found is not None
        assert found[1].messages == said


def test_another_message_in_its_place_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_chats, "xxh3_64_intdigest", lambda *_: 7)
    known = KnownChats(1 << 20)
    for text in "abab":
        said = [{"role": "user", "content": text}, {"role": "user", "content": text * 2}]
        tools = [{**TOOL, "type": text}]
        found = read(known, json.dumps({"messages": said, "tools": tools}).encode(), "")
        assert found is not None
        assert (found[1].messages, found[1].tools) == (said, tools)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"messages":3}', b'{"messages":["\xff"]}', b"{}"]
)
def test_what_is_no_chat_is_for_others_to_tell(body: bytes) -> None:
    assert read(KnownChats(1 << 20), body, "") is None


def test_what_is_kept_is_compared_with_its_domain_and_bytes() -> None:
    scanned = scan(b'{"messages": [{"content": "a"}, {"content": "b"}], "n": 1}', True)
    assert scanned is not None
    _, others = scanned.find_messages({}, 7, b"")
    (_, first, begin, end), (_, second, *_) = others

    assert scanned.body[begin:end] == b'{"content": "a"}'
    assert scanned.rest == b'{"messages": [], "n": 1}'
    for kept in ((b"", "a"), (b"x" + scanned.body[begin:end], "a"), (scanned.body[begin:end], "a")):
        known = kept[0] == scanned.body[begin:end]
        found, left = scanned.find_messages({first: kept, second: (b"", "b")}, 7, b"")
        assert (found, left) == (["a" if known else None, None], others[known:])
    assert (
        scanned.find_messages({first: (b"d" + scanned.body[begin:end], "a")}, 7, b"d")[0][0] == "a"
    )
