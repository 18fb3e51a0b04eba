from array import array
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import get_args

import pytest

from kvmesh.core.chat.chat import ChatInput, JsonObject
from kvmesh.core.chat.template import ChatTemplate
from kvmesh.core.engines.registry import EngineKind
from kvmesh.core.prompts.byte_tokenizer import check_ids
from kvmesh.core.prompts.hf_tokenizer import HfTokenizer
from kvmesh.core.prompts.text_packer import MOST_MESSAGES
from kvmesh.core.prompts.tokenizer_facts import TextBackend, TokenizerOptions
from kvmesh.errors import RequestError

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}</s>{% endfor %}"
    "{% if tools %}[{{ tools | length }} tools]{% endif %}{{ style }}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}"
)


class Characters:
    """A backend with one id per character that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def encode_batch(self, texts: Sequence[str]) -> list[bytes]:
        self.calls += 1
        return [array("I", text.encode("utf-32-le")).tobytes() for text in texts]


def make(
    characters: Characters,
    templates: dict[str, str],
    *,
    engine: EngineKind = "vllm",
    template_kwargs: JsonObject | None = None,
) -> HfTokenizer:
    backend = TextBackend(
        name="characters",
        note="a note",
        vocab_size=1000,
        added_tokens=(),
        encode_batch=characters.encode_batch,
        decode=lambda ids: "".join(map(chr, ids)),
        prefix=array("I", [1]).tobytes(),
        suffix=array("I", [2]).tobytes(),
        inline_characters=100,
    )
    compiled = {
        name: ChatTemplate(source, {}, lambda: datetime(2026, 1, 2, tzinfo=UTC), origin="test")
        for name, source in templates.items()
    }
    options = TokenizerOptions(engine=engine, template_kwargs=template_kwargs or {})
    return HfTokenizer("model", backend, compiled, options)


def chat(**fields: object) -> ChatInput:
    return ChatInput.from_body({"messages": [{"role": "user", "content": "Hi"}], **fields})


def text(tokenizer: HfTokenizer, request: ChatInput) -> str:
    return tokenizer.decode(tokenizer.encode_chat(request))


@pytest.mark.parametrize("engine", get_args(EngineKind))
def test_templates_are_looked_into_before_the_first_chat(
    engine: EngineKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = make(Characters(), {"default": TEMPLATE, "tool_use": TEMPLATE}, engine=engine)
    monkeypatch.setattr("kvmesh.core.chat.syntax.new_environment", None)

    assert text(tokenizer, chat())
    assert text(tokenizer, chat(tools=[{"type": "function", "function": {"name": "f"}}]))


NAMED = [{"role": "user", "content": "Hi", "name": "ann"}]


@pytest.mark.parametrize("fields", [{}, {"messages": NAMED}])
def test_a_repeated_chat_is_neither_rendered_nor_tokenised_again(fields: dict[str, object]) -> None:
    characters = Characters()
    tokenizer = make(characters, {"default": TEMPLATE})

    first = tokenizer.encode_chat(chat(**fields))
    first_calls = characters.calls
    first.append(7)
    second = tokenizer.encode_chat(chat(**fields))

    assert tokenizer.decode(second) == "<s>user:Hi</s><s>assistant:"
    assert characters.calls == first_calls
    statistics = tokenizer.statistics()
    plain = 0 if fields else 2
    assert (statistics.plain_chats, statistics.other_chats) == (plain, 2 - plain)
    assert statistics.prompts.hits == (1 if fields else 0)
    assert (statistics.backend, statistics.note, statistics.unlike) == ("characters", "a note", "")


def test_a_template_with_the_date_is_rendered_each_time() -> None:
    tokenizer = make(Characters(), {"default": "{{ strftime_now('%Y') }}"})
    request = chat(messages=NAMED)

    assert text(tokenizer, request) == text(tokenizer, request) == "2026"
    assert tokenizer.statistics().prompts.entries == 0
    assert tokenizer.statistics().segments.hits > 0


@pytest.mark.parametrize("texts", [["Hi"], [" "], ["Hi", "ho"]])
@pytest.mark.parametrize("domain", ["", "ann"])
def test_a_chat_of_texts_alone_is_packed_from_its_texts(texts: list[str], domain: str) -> None:
    tokenizer = make(Characters(), {"default": TEMPLATE})
    messages = [{"role": "user", "content": text} for text in texts]

    packed = tokenizer.pack_messages([("user", text) for text in texts], domain)

    assert packed == tokenizer.pack_chat(chat(messages=messages), domain)


def test_texts_that_have_no_ids_are_the_clients_error() -> None:
    with pytest.raises(RequestError, match="lone surrogate"):
        make(Characters(), {"default": TEMPLATE}).pack_messages([("user", "\ud800")])
    with pytest.raises(RequestError, match="has no chat template"):
        make(Characters(), {}).pack_messages([("user", "Hi")])


def test_a_chat_msgpack_cannot_hold_is_tokenised_without_the_cache() -> None:
    tokenizer = make(Characters(), {"default": "{{ style }}"})

    assert text(tokenizer, chat(chat_template_kwargs={"style": 1 << 70})) == str(1 << 70)
    assert tokenizer.statistics().prompts.entries == 0


def test_chats_that_differ_in_any_field_have_their_own_prompt() -> None:
    tokenizer = make(Characters(), {"default": TEMPLATE})
    tool = {"type": "function", "function": {"name": "f"}}

    texts = {
        text(tokenizer, chat(**fields))
        for fields in (
            {},
            {"tools": [tool]},
            {"chat_template_kwargs": {"style": "loud"}},
            {"add_generation_prompt": False},
        )
    }

    assert len(texts) == 4


def test_the_engines_default_arguments_yield_to_the_requests() -> None:
    tokenizer = make(
        Characters(),
        {"default": "{{ style }}{{ size }}"},
        template_kwargs={"style": "a", "size": 1},
    )

    assert text(tokenizer, chat()) == "a1"
    assert text(tokenizer, chat(chat_template_kwargs={"style": "b"})) == "b1"


def test_completions_get_the_models_affixes_and_chats_do_not() -> None:
    tokenizer = make(Characters(), {"default": TEMPLATE})

    assert list(tokenizer.encode("a", add_special_tokens=True)) == [1, 97, 2]
    assert list(tokenizer.encode("a", add_special_tokens=False)) == [97]


def test_sglang_encodes_a_continued_message_on_its_own() -> None:
    tokenizer = make(Characters(), {"default": TEMPLATE}, engine="sglang")
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Sure"}]

    ids = tokenizer.encode_chat(chat(messages=messages, continue_final_message=True))

    assert tokenizer.decode(ids) == "<s>user:Hi</s><s>assistant:Sure\x02"


def test_a_lone_surrogate_is_the_clients_error() -> None:
    tokenizer = make(Characters(), {"default": TEMPLATE})
    messages = [{"role": "user", "content": "\ud800"}]

    for refused in (messages, [{**messages[0], "name": "ann"}]):
        with pytest.raises(RequestError, match="lone surrogate"):
            tokenizer.encode_chat(chat(messages=refused))


def test_a_chat_seen_in_one_domain_is_rendered_and_tokenised_anew_in_another() -> None:
    characters = Characters()
    tokenizer = make(characters, {"default": TEMPLATE})

    other = chat(messages=NAMED)
    packed = {tokenizer.pack_chat(other, domain) for domain in ("", "ann", "ben", "", "ann")}
    packed |= {tokenizer.pack_chat(chat(), domain) for domain in ("", "ann", "ben", "", "ann")}
    calls = characters.calls
    texts = {
        tokenizer.pack("hi", add_special_tokens=False, domain=domain)
        for domain in ("", "ann", "ann", "")
    }

    assert (len(packed), calls, len(texts), characters.calls - calls) == (1, 3, 1, 2)


def test_a_backend_that_sets_no_bound_tokenises_any_text_at_once() -> None:
    tokenizer = make(Characters(), {})

    tokenizer.bound_new_text(1)

    assert len(tokenizer.pack("as long as it likes", add_special_tokens=False)) > 4


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def of(*contents: object, **fields: object) -> ChatInput:
    messages = [{"role": "user", "content": content} for content in contents]
    return ChatInput.from_body({"messages": messages, **fields})


def test_parts_that_are_no_texts_are_rendered() -> None:
    template = "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}</s>{% endfor %}"
    tokenizer = make(Characters(), {"default": template})
    media = [*parts("see"), {"type": "image_url", "image_url": {"url": "data:,"}}]

    named = ChatInput.from_body(
        {"messages": [{"role": "user", "name": "n", "content": parts("Hi")}]}
    )

    developer = ChatInput.from_body({"messages": [{"role": "developer", "content": parts("Hi")}]})

    assert tokenizer.encode_chat(of(media))
    assert text(tokenizer, of(None)).startswith("<s>user:</s>")
    assert tokenizer.encode_chat(named)
    assert text(tokenizer, developer).startswith("<s>system:Hi</s>")


def test_a_message_with_media_and_no_role_is_rendered() -> None:
    template = "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}</s>{% endfor %}"
    tokenizer = make(Characters(), {"default": template}, engine="transformers")
    nameless = ChatInput.from_body({"messages": [{"content": [None], "tools": None}]})

    assert text(tokenizer, nameless) == "<s>:"


def test_a_lone_surrogate_in_a_part_is_the_clients_error() -> None:
    template = "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}</s>{% endfor %}"
    tokenizer = make(Characters(), {"default": template})

    with pytest.raises(RequestError):
        tokenizer.encode_chat(of(parts("\ud800"), "x"))


def test_ids_and_lengths_are_judged_by_the_backend() -> None:
    tokenizer = make(Characters(), {})

    check_ids([0, 999], tokenizer.vocab_size)
    with pytest.raises(RequestError, match="token id 1000"):
        check_ids([1000], tokenizer.vocab_size)
    assert tokenizer.inline_characters >= 100
    assert tokenizer.inline_characters < 101


def test_a_chat_of_many_messages_is_rendered() -> None:
    tokenizer = make(Characters(), {"default": TEMPLATE})
    many = [{"role": "user", "content": str(number)} for number in range(MOST_MESSAGES + 1)]

    for count, rendered in ((MOST_MESSAGES, 0), (MOST_MESSAGES + 1, 1)):
        assert text(tokenizer, chat(messages=many[:count])).count("<s>user") == count
        assert tokenizer.statistics().other_chats == rendered
