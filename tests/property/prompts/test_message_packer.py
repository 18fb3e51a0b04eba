"""Conversations that grow and change: the ids of known messages are those of a whole rendering.

The encoder gives one id to a whole chunk between added tokens, so that a print that is cut anywhere
else than the tokenizer cuts it shows.
"""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvmesh._native import scan
from kvmesh.core.chat.chat import ChatInput, KnownMessage
from kvmesh.core.chat.known_chats import KnownChats
from kvmesh.core.engines.registry import EngineKind, engine_of
from kvmesh.errors import RequestError
from tests.property.prompts.test_plain_chats import (
    MARKS,
    TEMPLATES,
    VOCABULARIES,
    chunks,
    template,
    tokenizer,
)

SAID = "{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ m.tool_calls ~ '<|im_end|>' }}"
ABOUT = {
    "nothing": "",
    "position": "{{ loop.index }}",
    "first": "{{ 'first' if loop.first else '' }}",
    "last": "{{ 'last' if loop.last else '' }}",
    "before": "{{ messages[loop.index0 - 1].role }}",
    "after": "{{ messages[loop.index0 + 1].role }}",
    "neighbours": "{{ (loop.previtem or m).role }}{{ (loop.nextitem or m).content }}",
    "start": "{{ messages[0].role }}",
    "value": "{{ count }}{{ ns.last }}{{ nothing }}",
    "tools": "{{ tools }}{{ enable_thinking }}{{ documents }}{{ add_generation_prompt }}",
    "macro": "{{ show(m.role) }}",
}
HEAD = (
    "{% macro show(m) %}[{{ m }}]{% endmacro %}"
    "{% set count = messages | length %}{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index %}{% endif %}"
    "{% endfor %}{% for m in messages[:1] %}{{ loop.last }}{% endfor %}<s>"
)
TAIL = "{% if add_generation_prompt %}<|im_start|>{{ messages[-1].role }}{% endif %}"
FORMS = {
    **TEMPLATES,
    **{
        name: f"{HEAD}{{% for m in messages %}}{SAID}{about}<stop>{{% endfor %}}{TAIL}"
        for name, about in ABOUT.items()
    },
    "open": f"{{% for m in messages %}}{SAID}>x{{% endfor %}}{TAIL}",
    "head": f"a>x{{% for m in messages %}}{SAID}{{% endfor %}}{TAIL}",
    "tail": f"a{{% for m in messages %}}{SAID}{{% endfor %}}b",
    "front": f"a{{% for m in messages %}}{{{{ m.role }}}}{SAID}{{% endfor %}}{TAIL}",
}
OFTEN = (*ABOUT, "reasoning", "tools", "chatml", "open", "head", "tail")
NAMES = st.sampled_from(OFTEN) | st.sampled_from(sorted(FORMS))
VOCABULARY = st.sampled_from(["special", "straddling", *sorted(VOCABULARIES)])
TEXT = st.sampled_from(["a", "b", "Hello"]) | st.lists(st.sampled_from(MARKS), max_size=4).map(
    "".join
)
ENGINE: st.SearchStrategy[EngineKind] = st.sampled_from(["vllm", "vllm", "sglang"])

FUNCTION = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["f", "g"]),
        "arguments": st.sampled_from(['{"a": 1}', '{"a": "<|im_end|>"}', "{}", "no JSON"]),
    }
)
CALL = st.fixed_dictionaries(
    {"id": st.just("c"), "type": st.just("function"), "function": FUNCTION}
)
MESSAGE: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "developer"]), "content": TEXT}
    ),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.none() | TEXT},
        optional={"tool_calls": st.lists(CALL, min_size=1, max_size=2), "reasoning_content": TEXT},
    ),
    st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": st.just("c"), "content": TEXT}),
    st.builds(
        lambda texts: {"role": "user", "content": [{"type": "text", "text": t} for t in texts]},
        st.lists(TEXT, max_size=2),
    ),
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "tools": st.sampled_from([[TOOL], [TOOL, TOOL], []]),
        "chat_template_kwargs": st.sampled_from(
            [{"enable_thinking": False}, {"enable_thinking": 0}, {"date_string": "then"}, {}]
        ),
        "documents": st.just([{"title": "t", "text": "x"}]),
        "tool_choice": st.just("none"),
        "reasoning_effort": st.sampled_from(["none", "high"]),
        "add_generation_prompt": st.booleans(),
    },
)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return bodies: each says what the one before said, and more, or something else in it."""
    messages = draw(st.lists(MESSAGE, min_size=1, max_size=3))
    fields = draw(FIELDS)
    bodies = []
    for _ in range(draw(st.integers(2, 6))):
        bodies.append({"messages": [*messages], **fields})
        change = draw(st.sampled_from(["fields", "one", "fewer", "salt", *["more"] * 4]))
        if change == "fields":
            fields = draw(FIELDS)
        elif change == "salt":
            fields = {**fields, "cache_salt": draw(st.sampled_from(["a", "b", ""]))}
        elif change == "one":
            messages[draw(st.integers(0, len(messages) - 1))] = draw(MESSAGE)
        elif change == "fewer":
            messages = [*messages[: draw(st.integers(1, len(messages)))], *messages[-1:]]
        else:
            messages += draw(st.lists(MESSAGE, min_size=1, max_size=2))
    return bodies


@given(
    bodies=conversations(),
    name=NAMES,
    engine=ENGINE,
    vocabulary=VOCABULARY,
)
def test_what_was_said_before_has_the_ids_of_a_whole_rendering(
    bodies: list[dict[str, Any]], name: str, engine: EngineKind, vocabulary: str
) -> None:
    packer = tokenizer(FORMS[name], engine, vocabulary)
    known = KnownChats(1 << 20)
    for body in bodies:
        body_bytes = json.dumps(body).encode()
        scanned = scan(body_bytes, True)
        found = None if scanned is None else known.read(scanned, body.get("cache_salt", ""))
        assert found is not None
        chat = found[1]
        try:
            call = engine_of(engine).chat(ChatInput.from_body(body_bytes), template(FORMS[name]))
            expected = chunks(vocabulary, [template(FORMS[name]).render(call)])[0]
            if call.suffix:
                expected += chunks(vocabulary, [call.suffix])[0] + b"E"
        except RequestError as error:
            expected = str(error).encode()
        try:
            packed = packer.pack_chat(chat, body.get("cache_salt", ""))
        except RequestError as error:
            packed = str(error).encode()
        assert packed == expected
        for one in chat.messages:
            assert not isinstance(one, KnownMessage) or len(one.ids) <= one.size
