"""Prompts of vLLM 0.32.0 and SGLang 0.5.23, recorded from their own code, against ours."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

import msgspec
import pytest

from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.chat.template import ChatTemplate
from kvmesh.core.engines.registry import EngineKind, engine_of
from kvmesh.errors import RequestError

Format = Literal["string", "openai"]


class Recording(msgspec.Struct):
    bodies: dict[str, dict[str, object]]
    templates: dict[Format, str]
    rendered: dict[Literal["vllm", "sglang"], dict[str, dict[Format, str | None]]]


FILE = Path(__file__).parents[3] / "fixtures" / "chat" / "engine_shapes.json"
RECORDING = msgspec.json.decode(FILE.read_bytes(), type=Recording)


def render(body: Mapping[str, object], engine: EngineKind, template: str) -> str:
    compiled = ChatTemplate(template, {}, lambda: datetime.now(UTC), origin="test")
    call = engine_of(engine).chat(ChatInput.from_body(body), compiled)
    return compiled.render(call) + call.suffix


@pytest.mark.parametrize("content_format", get_args(Format))
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("name", RECORDING.bodies)
def test_template_sees_what_the_engine_would_show_it(
    name: str, engine: Literal["vllm", "sglang"], content_format: Format
) -> None:
    body = RECORDING.bodies[name]
    template = RECORDING.templates[content_format]
    wanted = RECORDING.rendered[engine][name][content_format]

    if wanted is None:
        with pytest.raises(RequestError, match="not a JSON object"):
            render(body, engine, template)
    else:
        assert render(body, engine, template) == wanted


USER = {"role": "user", "content": "Hi"}
CHATML = (
    "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}"
)
PARTS = (
    "{% for m in messages %}<s>{{ m.role }}:"
    "{% for part in m.content %}{{ part.text }}{% endfor %}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}"
)


@pytest.mark.parametrize("engine", get_args(EngineKind))
def test_a_continued_message_stays_open(engine: EngineKind) -> None:
    body = {
        "messages": [USER, {"role": "assistant", "content": "Sure"}],
        "continue_final_message": True,
    }

    assert render(body, engine, CHATML) == "<s>user:Hi</s><s>assistant:Sure"


@pytest.mark.parametrize("engine", get_args(EngineKind))
@pytest.mark.parametrize(
    ("template", "wanted"),
    [(CHATML, "<s>user:Hi</s><s>user:"), (PARTS, "<s>user:Hi</s><s>user:look: ")],
)
def test_the_prompt_ends_where_the_first_image_would_stand(
    engine: EngineKind, template: str, wanted: str
) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:,"}}
    parts = [{"type": "text", "text": "look: "}, picture, {"type": "text", "text": "what is it?"}]
    first = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    plain = USER if template == CHATML else first
    body = {"messages": [plain, {"role": "user", "content": parts}, USER]}

    assert render(body, engine, template) == wanted


def test_vllm_takes_tool_arguments_that_are_already_an_object() -> None:
    template = "{{ messages[0].tool_calls | tojson }}"
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    body = {"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}, USER]}

    assert '"arguments": {"a": 1}' in render(body, "vllm", template)


def test_sglang_leaves_tool_calls_of_other_roles_encoded() -> None:
    template = "{{ messages[0].tool_calls | tojson }}"
    calls = [{"function": {"name": "f", "arguments": "{}"}}, {"function": None}]
    body = {"messages": [{"role": "tool", "content": "", "tool_calls": calls}, USER]}

    text = render(body, "sglang", template)

    assert '"arguments": "{}"' in text
    assert '"name": null' in text


@pytest.mark.parametrize("arguments", ["not json", "", "[1]", "null"])
def test_sglang_refuses_tool_arguments_that_are_no_object(arguments: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    body = {"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}, USER]}

    with pytest.raises(RequestError, match="are not a JSON object"):
        render(body, "sglang", CHATML)


@pytest.mark.parametrize("engine", get_args(EngineKind))
@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_of_a_text_shapes_see_only_blanks_and_their_marks(engine: EngineKind, role: str) -> None:
    template = "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}</s>{% endfor %}"
    texts = ("plain", " blanks \n", "{ } < >", "\u00fc", "0", "none", '{"a": 1}')

    prompts = {
        render({"messages": [{"role": role, "content": text}, USER]}, engine, template).replace(
            f":{text}<", ":<"
        )
        for text in texts
    }

    assert len(prompts) == 1
    for mark in engine_of(engine).chat_marks:
        marked = {"messages": [{"role": "system", "content": f"{mark}: 1\nBe kind"}, USER]}
        assert mark not in render(marked, engine, template)


def test_transformers_passes_tools_and_reasoning_on_as_they_came() -> None:
    template = "{{ tools | tojson }}{% for m in messages %}{{ m.thinking }}{% endfor %}"
    message = {"role": "assistant", "content": "x", "reasoning": "R"}
    body = {"messages": [message], "tools": [{"function": {"name": "f"}, "b": 1}]}

    assert render(body, "transformers", template) == '[{"function": {"name": "f"}, "b": 1}]R'
