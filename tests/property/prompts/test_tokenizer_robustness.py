"""Whatever JSON a client sends, a tokenizer answers with ids or with the client's error."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.chat.template import ChatTemplate
from kvmesh.core.engines.registry import EngineKind
from kvmesh.core.prompts.byte_tokenizer import ByteTokenizer, check_ids
from kvmesh.core.prompts.hf_tokenizer import HfTokenizer
from kvmesh.core.prompts.tokenizer_facts import TextBackend, TokenizerOptions
from kvmesh.errors import RequestError
from tests.unit.app.prompts.tokenizer_models import CHATML, PARTS

TEMPLATES = (CHATML, PARTS, "{{ messages | tojson }}{{ tools | tojson }}")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
FUNCTION = JSON | st.fixed_dictionaries(
    {"name": JSON}, optional={"arguments": JSON | st.just('{"a": 1}'), "parameters": JSON}
)
CALL = JSON | st.fixed_dictionaries({}, optional={"id": JSON, "type": JSON, "function": FUNCTION})
PART = JSON | st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "refusal", "image_url", "tool_reference", "new"])},
    optional={"text": JSON, "refusal": JSON, "image_url": JSON},
)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": JSON | st.sampled_from(["system", "user", "assistant", "tool", "developer"]),
        "content": JSON | st.text(max_size=6) | st.lists(PART, max_size=3),
        "tool_calls": JSON | st.lists(CALL, max_size=2),
        "reasoning": JSON,
        "reasoning_content": JSON,
        "name": JSON,
        "tool_call_id": JSON,
        "tools": JSON,
    },
)
BODY = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE, max_size=4)},
    optional={
        "tools": JSON | st.lists(CALL, max_size=2),
        "tool_choice": JSON | st.fixed_dictionaries({"function": FUNCTION}),
        "documents": JSON,
        "chat_template_kwargs": JSON | st.dictionaries(st.sampled_from(["messages", "x"]), JSON),
        "reasoning_effort": JSON,
        "add_generation_prompt": st.booleans(),
        "continue_final_message": st.booleans(),
    },
)


@cache
def tokenizer(engine: EngineKind, source: str) -> HfTokenizer:
    def encode_batch(texts: Sequence[str]) -> list[bytes]:
        return [text.encode("utf-32-le") for text in texts]

    backend = TextBackend("plain", "", 1 << 21, (), encode_batch, str, b"", b"", 1000)
    template = ChatTemplate(source, {}, lambda: datetime.now(UTC), origin="test")
    return HfTokenizer("m", backend, {"default": template}, TokenizerOptions(engine=engine))


@pytest.mark.parametrize("engine", get_args(EngineKind))
@given(body=BODY, source=st.sampled_from(TEMPLATES))
def test_any_body_gives_ids_or_the_clients_error(
    engine: EngineKind, source: str, body: dict[str, object]
) -> None:
    with suppress(RequestError):
        chat = ChatInput.from_body(msgspec.json.encode(body))
        tokenizer(engine, source).encode_chat(chat)


@given(body=BODY)
def test_bytes_take_every_chat(body: dict[str, object]) -> None:
    with suppress(RequestError):
        chat = ChatInput.from_body(body)
        check_ids(ByteTokenizer().encode_chat(chat), ByteTokenizer.vocab_size)
