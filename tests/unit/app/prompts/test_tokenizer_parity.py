"""Token ids against transformers, and against a plain rendering."""

import copy
import importlib
import json
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from kvmesh.app.prompts.tokenizer import load_tokenizer
from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.prompts.tokenizer_facts import TokenizerOptions
from tests.unit.app.prompts.tokenizer_models import CHATML, Chat, random_chat, train, write_model

SEEDS = range(80)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("models") / "small")


def plain_ids(reference: Tokenizer, body: Chat) -> list[int]:
    """Render without any of kvmesh's code, cut a continued message at its end, encode at once."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    source = CHATML.replace("{%- generation %}", "").replace("{%- endgeneration %}", "")
    messages = [
        {key: value for key, value in message.items() if value is not None}
        for message in copy.deepcopy(body["messages"])
    ]
    if continued := body.get("continue_final_message", False):
        messages[-1]["content"] += "@@@"
    text = environment.from_string(source).render(
        messages=messages,
        tools=body.get("tools"),
        documents=body.get("documents"),
        add_generation_prompt=not continued,
        **body.get("chat_template_kwargs", {}),
    )
    text = text.rpartition("@@@")[0] if continued else text
    return list(reference.encode(text, add_special_tokens=False).ids)


def test_ids_equal_a_plain_rendering_of_random_chats(model: str) -> None:
    tokenizer = load_tokenizer(model, options=TokenizerOptions(engine="transformers"))
    reference = Tokenizer.from_str(train())
    bodies = [random_chat(seed) for seed in SEEDS]

    for body in bodies:
        raw = json.dumps(body).encode()
        assert list(tokenizer.encode_chat(ChatInput.from_body(raw))) == plain_ids(reference, body)

    assert sum("tools" in body for body in bodies) > 35
    assert sum("continue_final_message" in body for body in bodies) > 10


def transformers_ids(reference: Any, body: Chat) -> list[int]:
    ids: list[int] = reference.apply_chat_template(
        copy.deepcopy(body["messages"]),
        tools=body.get("tools"),
        documents=body.get("documents"),
        add_generation_prompt=body.get("add_generation_prompt", True),
        continue_final_message=body.get("continue_final_message", False),
        return_dict=False,
        **body.get("chat_template_kwargs", {}),
    )
    return ids


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_ids_equal_transformers_on_random_chats(model: str, engine: Any) -> None:
    transformers = importlib.import_module("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(model)
    tokenizer = load_tokenizer(model, options=TokenizerOptions(engine=engine))

    for seed in SEEDS:
        body = random_chat(seed)
        ids = list(tokenizer.encode_chat(ChatInput.from_body(json.dumps(body).encode())))
        if engine == "vllm":
            for call in (c for m in body["messages"] for c in m.get("tool_calls") or []):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        assert ids == transformers_ids(reference, body)


def test_completions_equal_transformers(tmp_path: Path) -> None:
    transformers = importlib.import_module("transformers")
    path = write_model(tmp_path, config={"pad_token": "<|pad|>", "add_bos_token": True})
    reference = transformers.AutoTokenizer.from_pretrained(path)
    tokenizer = load_tokenizer(path)

    for seed in SEEDS:
        for message in random_chat(seed)["messages"]:
            text = f"{message['content']}<|pad|>"
            assert (
                list(tokenizer.encode(text, add_special_tokens=True)) == reference(text).input_ids
            )
