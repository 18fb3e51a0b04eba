"""Chats of texts alone: the same ids without a run of their template as with one.

The encoder here gives one id to a whole chunk between added tokens, so that a text cut anywhere
else than the tokenizer cuts it shows.
"""

import ast
import re
import zlib
from array import array
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.chat.template import ChatTemplate
from kvmesh.core.engines.registry import EngineKind, engine_of
from kvmesh.core.prompts.hf_tokenizer import HfTokenizer
from kvmesh.core.prompts.segment_cache import AddedToken
from kvmesh.core.prompts.tokenizer_facts import TextBackend, TokenizerOptions
from kvmesh.errors import RequestError
from tests.unit.app.prompts.tokenizer_models import CHATML, PARTS
from tests.unit.core.chat.template_forms import FORMS

PUBLISHED = (
    *("models/llama4/processing_llama4.py", "models/qwen2_audio/processing_qwen2_audio.py"),
    "models/smolvlm/processing_smolvlm.py",
)


def published() -> dict[str, str]:
    """Return chat templates of models that stand in the code of `transformers`, if it is here."""
    found = find_spec("transformers")
    root = Path(found.origin).parent if found is not None and found.origin else Path()
    files = [root / name for name in PUBLISHED if (root / name).is_file()]
    return {
        file.stem: node.value
        for file in files
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and "{%" in node.value
        and "messages" in node.value
    }


TEMPLATES = {**FORMS, "tools": CHATML, "parts": PARTS, **published()}
SPECIAL = (
    "<|im_start|>",
    "<|im_end|>",
    "<|header|>",
    "<|eot|>",
    "<s>",
    "</s>",
    "<start>",
    "<stop>",
)
VOCABULARIES = {
    "special": SPECIAL,
    "straddling": (*SPECIAL, "\n\n", "<|im_end|>\n", "x<|im_end|>", "<|im_start|>user\nx", ">x<"),
    "one": ("<s>",),
    "none": (),
}
MARKS = (
    *(
        "a",
        "x",
        " ",
        "\n",
        "\n\n",
        "\t",
        "\u3000",
        "\u00fc\u4f60",
        "\U0001f642",
        "<",
        ">",
        "|",
        "1",
    ),
    *(
        "<|im_end|>",
        "<|im_start|>user\nx",
        "<s>",
        "</s>",
        "im_end|>",
        "<|im_",
        "</think>",
        "<think>",
    ),
    *("<result>", "</result>", "x-anthropic-billing-header: 1", "\ue000", "{{ x }}", "assistant"),
)
TEXT = st.lists(st.sampled_from(MARKS), min_size=0, max_size=6).map("".join) | st.text(max_size=8)
PART: st.SearchStrategy[object] = TEXT | st.builds(
    dict, type=st.sampled_from(["text", "text", "input_text", "refusal"]), text=TEXT
)
CONTENT = TEXT | TEXT | st.lists(PART, max_size=3)
ROLES = st.sampled_from(
    [
        *(("user",), ("system", "user"), ("user", "assistant", "user"), ("user", "assistant")),
        *(("system", "user", "assistant", "user", "assistant", "user"), ("system",), ("tool",)),
        *(("user", "tool", "assistant", "tool", "user"), ("system", "system", "user"), ("USER",)),
        *(("user", "system", "user"), ("developer", "user"), ("user", "user"), ("assistant",)),
    ]
)
KWARGS = st.sampled_from([{}, {}, {"enable_thinking": False}, {"date_string": "then"}])


def chunks(vocabulary: str, texts: Sequence[str]) -> list[bytes]:
    """Return one id for each added token, and one for all that stands between two."""
    tokens = sorted(VOCABULARIES[vocabulary], key=len, reverse=True)
    pattern = "|".join(map(re.escape, tokens)) or "(?!)"
    cut = (re.split(f"({pattern})", text) for text in texts)
    return [array("I", [zlib.crc32(p.encode()) for p in parts if p]).tobytes() for parts in cut]


@cache
def template(source: str) -> ChatTemplate:
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    return ChatTemplate(source, special, lambda: datetime(2026, 1, 2, tzinfo=UTC), origin="test")


@cache
def tokenizer(source: str, engine: EngineKind, vocabulary: str) -> HfTokenizer:
    added = tuple(AddedToken(text, normalized=False) for text in VOCABULARIES[vocabulary])
    backend = TextBackend(
        *("chunks", "", 1 << 32, added), lambda texts: chunks(vocabulary, texts), str, b"", b"E", 99
    )
    return HfTokenizer("m", backend, {"default": template(source)}, TokenizerOptions(engine=engine))


def rendered(name: str, engine: EngineKind, vocabulary: str, chat: ChatInput) -> bytes | str:
    """Return the ids of the whole rendered text, or the client's error."""
    try:
        call = engine_of(engine).chat(chat, template(TEMPLATES[name]))
        text, suffix = chunks(vocabulary, [template(TEMPLATES[name]).render(call), call.suffix])
    except RequestError as error:
        return str(error)
    return text + (suffix + b"E" if call.suffix else b"")


@pytest.mark.parametrize("engine", get_args(EngineKind))
@pytest.mark.parametrize("name", TEMPLATES)
@given(data=st.data())
def test_ids_are_those_of_the_rendered_chat(
    name: str, engine: EngineKind, data: st.DataObject
) -> None:
    vocabulary = data.draw(st.sampled_from(list(VOCABULARIES)))
    subject = tokenizer(TEMPLATES[name], engine, vocabulary)
    roles = data.draw(ROLES)
    fields = {
        "messages": [{"role": role, "content": data.draw(CONTENT)} for role in roles],
        "chat_template_kwargs": data.draw(KWARGS),
        "add_generation_prompt": data.draw(st.booleans()),
    }
    chat = ChatInput.from_body(msgspec.json.encode(fields))
    domain = data.draw(st.sampled_from(["", "", "salt"]))

    try:
        ids: bytes | str = subject.pack_chat(chat, domain)
    except RequestError as error:
        ids = str(error)

    assert ids == rendered(name, engine, vocabulary, chat)


@pytest.mark.parametrize("engine", get_args(EngineKind))
@pytest.mark.parametrize("name", FORMS)
def test_plain_chats_of_usual_templates_are_not_rendered(name: str, engine: EngineKind) -> None:
    subject = tokenizer.__wrapped__(name, engine, "special")

    for number in range(5):
        texts = [f"Question {number}, with a < b > c and more", "An answer", "Another question"]
        assert subject.pack_messages([*zip(("user", "assistant", "user"), texts, strict=True)])

    found = subject.statistics()
    assert (found.plain_chats, found.other_chats, found.unlike) == (5, 0, "")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_parts_that_an_engine_makes_strings_of_are_not_rendered(engine: EngineKind) -> None:
    name = next(iter(FORMS))
    subject = tokenizer.__wrapped__(TEMPLATES[name], engine, "special")
    part = {"type": "text", "text": "Question 1"}
    fields = {"messages": [{"role": "user", "content": [part]}]}
    chat = ChatInput.from_body(msgspec.json.encode(fields))

    assert subject.pack_chat(chat) == rendered(name, engine, "special", chat)
    found = subject.statistics()
    assert (found.plain_chats, found.other_chats) == (1, 0)
