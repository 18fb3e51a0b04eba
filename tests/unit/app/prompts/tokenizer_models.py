"""A small model directory made on the spot, and random chats for it."""

import json
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

Chat = dict[str, Any]

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|image_pad|>")
MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>")

CHATML = r"""
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "# Tools\n\nCall functions when they help.\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for document in documents or [] %}
    {{- '<|im_start|>document\n' + document.title + '\n' + document.text + '<|im_end|>\n' }}
{%- endfor %}
{%- set state = namespace(last_user=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set state.last_user = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if message.reasoning_content is defined and loop.index0 > state.last_user %}
            {{- '<think>\n' + message.reasoning_content.strip('\n') + '\n</think>\n\n' }}
        {%- endif %}
        {%- generation %}
        {{- message.content or '' }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if (loop.first and message.content) or not loop.first %}{{- '\n' }}{% endif %}
            {{- '<tool_call>\n{"name": "' + tool_call.function.name + '", "arguments": ' }}
            {%- if tool_call.function.arguments is string %}
                {{- tool_call.function.arguments }}
            {%- else %}
                {{- tool_call.function.arguments | tojson }}
            {%- endif %}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {%- endgeneration %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- elif message.role != 'system' %}
        {{- raise_exception('Unexpected message role: ' + message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""

PARTS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% for part in message['content'] %}"
    "{% if part.type == 'image' %}<|image_pad|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def corpus() -> tuple[str, ...]:
    """Texts of the standard library, the same on every run of one interpreter."""
    root = Path(sysconfig.get_paths()["stdlib"])
    return tuple(
        file.read_text(encoding="utf-8", errors="replace")[:20_000]
        for file in sorted(root.glob("*.py"))[:60]
    )


@cache
def train(vocab_size: int = 2000) -> str:
    """Return a byte-level BPE in Qwen's shape, as the text of its tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in MARKS])
    return tokenizer.to_str()


def write_model(
    directory: Path,
    *,
    template: object = CHATML,
    config: dict[str, Any] | None = None,
    tokenizer: str | None = None,
) -> str:
    """Write a model directory and return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(tokenizer or train(), encoding="utf-8")
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "clean_up_tokenization_spaces": False,
        **(config or {}),
    }
    if template is not None:
        settings["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return str(directory)


def random_text(rng: Random, length: int = 200) -> str:
    """Return text with code, blanks, scripts, emoji and now and then a special token."""
    pieces = [
        lambda: (t := rng.choice(corpus()))[(i := rng.randrange(max(len(t) - length, 1))) : i + 60],
        lambda: rng.choice(["  ", "\n\n", "\t", " \n ", "\r\n", "\u3000", "\u00a0"]),
        lambda: rng.choice(
            ["你好\uff0c世界。", "Привет!", "naïve cafe\u0301", "👩‍👩‍👧 🇩🇪", "İı ﬁ Å"]
        ),
        lambda: rng.choice([*SPECIAL, *MARKS, "<|im_", "im_end|>", "<tools>", "</think"]),
        lambda: rng.choice(["{}", '{"a": [1, 2.5, null]}', "'quoted'", "x" * 40, "12345", "I'LL"]),
    ]
    text = ""
    while len(text) < length:
        text += rng.choices(pieces, weights=[6, 2, 2, 1, 2])[0]()
    return text[: rng.randrange(length)] if rng.random() < 0.9 else ""


def random_tool(rng: Random) -> dict[str, Any]:
    """Return a tool in the order the OpenAI documentation writes it."""
    kind = rng.choice(["string", "number", "boolean"])
    schema = {
        "type": "object",
        "properties": {
            rng.choice(["city", "größe", "n"]): {"type": kind, "description": random_text(rng, 30)},
            "limits": {
                "type": "array",
                "items": {"type": "integer"},
                "default": [1, -2.5e-7, None],
            },
        },
        "required": ["limits"],
    }
    name = rng.choice(["get_weather", "search", "run"])
    function = {"name": name, "description": random_text(rng, 60), "parameters": schema}
    return {"type": "function", "function": function}


def random_call(rng: Random, number: int) -> dict[str, Any]:
    """Return an assistant's tool call with its arguments as JSON text, as clients send it."""
    arguments = {
        "city": random_text(rng, 20),
        "n": rng.choice([1, 2.5, None, True, [1, {"a": "ü"}]]),
    }
    function = {"name": "get_weather", "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": f"call_{number}", "type": "function", "function": function}


def random_messages(rng: Random) -> Iterator[dict[str, Any]]:
    """Yield a conversation: perhaps a system message, then turns with tool calls and reasoning."""
    if rng.random() < 0.6:
        yield {"role": "system", "content": random_text(rng, 150)}
    for _ in range(rng.randint(1, 4)):
        yield {"role": "user", "content": random_text(rng, 300)}
        if rng.random() < 0.4:
            calls = [random_call(rng, i) for i in range(rng.randint(1, 2))]
            content = rng.choice([None, "", random_text(rng, 40)])
            yield {"role": "assistant", "content": content, "tool_calls": calls}
            for call in calls:
                text = random_text(rng, 80)
                yield {"role": "tool", "tool_call_id": call["id"], "content": text}
        if rng.random() < 0.8:
            answer: dict[str, Any] = {"role": "assistant", "content": random_text(rng, 200)}
            if rng.random() < 0.3:
                answer["reasoning_content"] = random_text(rng, 80)
            yield answer
    yield {"role": "user", "content": random_text(rng, 100)}


def random_chat(seed: int) -> Chat:
    """Return an OpenAI chat body."""
    rng = Random(seed)
    body: Chat = {"model": "m", "messages": list(random_messages(rng)), "temperature": 0.5}
    if rng.random() < 0.6:
        body["tools"] = [random_tool(rng) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.3:
        body["chat_template_kwargs"] = {"enable_thinking": rng.random() < 0.5}
    if rng.random() < 0.2:
        body["documents"] = [{"title": "T", "text": random_text(rng, 60)}]
    if rng.random() < 0.2:
        last = {"role": "assistant", "content": rng.choice(["Sure, ", "It is\n", "x", "a  b \n"])}
        body["messages"].append(last)
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    return body
