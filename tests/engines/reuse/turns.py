"""What vLLM makes of Anthropic's messages and of responses, told by its own code.

Run by the interpreter of an environment with vLLM, it writes the fixture that
`tests/unit/core/engines/vllm/turns_told.py` reads:
`PYTHONPATH=. /tmp/kvmesh-vllm-0.32.0/bin/python tests/engines/reuse/turns.py`.
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Any, Final

FIXTURE: Final = Path(__file__).parents[2] / "fixtures/engines/vllm_0.32.0_turns.json"
Body = dict[str, Any]

_BILLING: Final = "x-anthropic-billing-header: cc_version=1; cch=abc;"
_SCHEMA: Final = {"properties": {"word": {"type": "string"}}}
_TOOLS: Final[list[Body]] = [
    {"name": "a", "description": "A.", "input_schema": _SCHEMA},
    {"name": "b", "input_schema": {"type": "object"}, "strict": True, "defer_loading": True},
]


def _user(content: object) -> Body:
    return {"role": "user", "content": content}


def _assistant(content: object) -> Body:
    return {"role": "assistant", "content": content}


_TEXT: Final = {"type": "text", "text": "so"}
_IMAGE: Final = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
}
_USE: Final = {"type": "tool_use", "id": "c", "name": "a", "input": {"word": "é", "n": [1, 2.5]}}
_THOUGHT: Final = {"type": "thinking", "thinking": "hm", "signature": "s"}


def _result(content: object) -> Body:
    return {"type": "tool_result", "tool_use_id": "c", "content": content}


def _changed(kind: str, tool: Body) -> Body:
    return {"role": "system", "content": [{"type": kind, "tool": tool}]}


MESSAGES: Final[list[Body]] = [
    {"messages": [_user("hi")]},
    {"messages": [_user("hi")], "system": "Be kind."},
    {"messages": [_user("hi")], "system": f"{_BILLING}\nBe kind."},
    {"messages": [_user("hi")], "system": [{"type": "text", "text": _BILLING}, _TEXT, _TEXT]},
    {"messages": [_user("hi")], "system": [{"type": "text", "text": ""}]},
    {"messages": [_user([_TEXT])]},
    {"messages": [_user([_TEXT, {**_TEXT, "cache_control": {"type": "ephemeral"}}])]},
    {"messages": [_user([_TEXT, _IMAGE, _TEXT])]},
    {"messages": [_user("hi"), _assistant([_THOUGHT, _TEXT, _USE]), _user([_result("done")])]},
    {"messages": [_user("hi"), _assistant([_USE]), _user([_result([_TEXT, _TEXT]), _TEXT])]},
    {"messages": [_user("hi"), _assistant([_USE, _USE]), _user([_result([_TEXT, _IMAGE])])]},
    {"messages": [_user("hi"), _assistant([_USE]), _user([_result(None)])]},
    {
        "messages": [
            _user([_result([_TEXT, {"type": "tool_reference", "tool_name": "a"}])]),
            _assistant([{"type": "redacted_thinking", "data": "x"}]),
            _assistant([_result([_TEXT]), {**_USE, "input": None, "name": None}]),
        ]
    },
    {"messages": [_user("hi"), {"role": "system", "content": "late"}, _user("and?")]},
    {"messages": [_user("hi"), {"role": "system", "content": _BILLING}, _user("and?")]},
    {"messages": [_user("hi"), {"role": "system", "content": [_TEXT]}], "system": "early"},
    {"messages": [_user("hi")], "tools": _TOOLS},
    {
        "messages": [
            _user("hi"),
            _changed("tool_removal", {"type": "tool_reference", "name": "a"}),
            _changed("tool_addition", {"type": "tool_reference", "name": "b"}),
            _changed(
                "tool_addition",
                {"type": "tool_definition", "definition": {**_TOOLS[0], "name": "d"}},
            ),
        ],
        "tools": _TOOLS,
    },
    {"messages": [_user("hi")], "thinking": {"type": "disabled"}},
    {"messages": [_user("hi")], "thinking": {"type": "enabled", "budget_tokens": 1024}},
    {"messages": [_user("hi")], "output_config": {"effort": "high"}},
    {"messages": [_user("hi")], "chat_template_kwargs": {"enable_thinking": False}},
]

_CALL: Final = {"type": "function_call", "call_id": "c", "name": "a", "arguments": '{"w": 1}'}
_OUTPUT: Final = {"type": "function_call_output", "call_id": "c", "output": "done"}
_SAID: Final = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "so"}],
}
_REASONING: Final = {
    "type": "reasoning",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "hm"}],
}
_FUNCTION: Final = {"type": "function", "name": "a", "description": "A.", "parameters": _SCHEMA}

RESPONSES: Final[list[Body]] = [
    {"input": "hi"},
    {"input": "hi", "instructions": "Be kind."},
    {"input": "hi", "instructions": ""},
    {"input": [_user("hi"), _SAID, _user([{"type": "input_text", "text": "and?"}])]},
    {"input": [_user("hi"), _assistant("so"), _user("and?")]},
    {"input": [_user("hi"), _REASONING, _SAID, _CALL, _CALL, _OUTPUT, _user("and?")]},
    {"input": [_user("hi"), _CALL, _SAID, _OUTPUT]},
    {"input": [_user("hi"), {**_CALL, "namespace": "n"}, _OUTPUT]},
    {"input": [_user("hi"), _SAID, _SAID, _REASONING, _user("and?")]},
    {
        "input": [
            _user("hi"),
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "in short"}]},
            _user("and?"),
        ]
    },
    {
        "input": [
            _user("hi"),
            {"type": "custom_tool_call", "call_id": "c", "name": "x", "input": "é"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
        ]
    },
    {"input": [_user("hi"), {**_SAID, "status": "in_progress"}]},
    {"input": [{"role": "developer", "content": "Be kind."}, _user("hi")]},
    {"input": "hi", "tools": [_FUNCTION, {"type": "custom", "name": "x", "description": "X."}]},
    {
        "input": "hi",
        "tools": [
            {"type": "namespace", "name": "n", "description": "N.", "tools": [_FUNCTION]},
            {**_FUNCTION, "strict": True},
        ],
    },
    {"input": "hi", "reasoning": {"effort": "low"}},
    {"input": "hi", "chat_template_kwargs": {"enable_thinking": False}},
]


def _reported() -> dict[str, list[Body]]:
    anthropic, openai = "vllm.entrypoints.anthropic", "vllm.entrypoints.openai.responses"
    protocol, serving = (import_module(f"{anthropic}.{one}") for one in ("protocol", "serving"))
    response, utils = (import_module(f"{openai}.{one}") for one in ("protocol", "utils"))
    convert = serving.AnthropicServingMessages.to_chat_completion_request
    found: dict[str, list[Body]] = {"messages": [], "responses": []}
    for body in MESSAGES:
        asked = protocol.AnthropicMessagesRequest(model="m", max_tokens=4096, **body)
        made = convert(asked)
        merged = convert(asked, merge_inline_system=True)
        found["messages"].append(
            {
                "body": body,
                "messages": made.messages,
                "merged": merged.messages,
                "tools": [one.model_dump() for one in made.tools] if made.tools else None,
                "reasoning_effort": made.reasoning_effort,
                "chat_template_kwargs": made.chat_template_kwargs,
            }
        )
    for body in RESPONSES:
        asked = response.ResponsesRequest(model="m", **json.loads(json.dumps(body)))
        params = asked.build_chat_params(None, "auto").chat_template_kwargs
        found["responses"].append(
            {
                "body": body,
                "messages": utils.construct_input_messages(
                    request_instructions=asked.instructions, request_input=asked.input
                ),
                "tools": utils.construct_tool_dicts(asked.tools, asked.tool_choice),
                "chat_template_kwargs": params,
            }
        )
    return found


if __name__ == "__main__":
    FIXTURE.write_text(json.dumps(_reported(), indent=1, default=list) + "\n", encoding="utf-8")
