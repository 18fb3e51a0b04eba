"""Requests of the responses API as the chat that vLLM makes of them.

Source: vLLM 0.32 `entrypoints/openai/responses/{protocol,utils}.py`, `tool_parsers/utils.py`.
"""

import json
from typing import Final, cast

import msgspec

from kvmesh.bounds import shown
from kvmesh.core.chat.chat import (
    ChatBody,
    ChatInput,
    JsonObject,
    KeepMedia,
    content_parts,
    keep_none,
)
from kvmesh.core.chat.inference import Parsed, field_of
from kvmesh.errors import RequestError

_UNFINISHED: Final = frozenset({"in_progress", "incomplete"})
_CONTINUED: Final = frozenset({"message", "reasoning"})
_CALLS: Final = frozenset({"function_call", "custom_tool_call"})
_OUTPUTS: Final = frozenset({"function_call_output", "custom_tool_call_output"})
_SHIM: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "input": {
            "type": "string",
            "description": "The freeform text payload for this tool.",
        }
    },
    "required": ["input"],
    "additionalProperties": False,
}
"""How a tool of free text is shown to the model, in vLLM's own words."""


class _Reasoning(msgspec.Struct):
    effort: str | None = None


def chat_of_response(parsed: Parsed, keep: KeepMedia = keep_none) -> ChatInput:
    """Return the chat of a responses body. Raises one of `UNREADABLE`, or `RequestError`."""
    given = msgspec.convert(field_of(parsed.input), str | list[JsonObject])
    reasoning = msgspec.convert(field_of(parsed.reasoning), _Reasoning | None)
    tools = msgspec.convert(field_of(parsed.tools), list[JsonObject] | None)
    instructions = msgspec.convert(field_of(parsed.instructions), str | None)
    messages: list[JsonObject] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    items: list[JsonObject] = (
        [{"role": "user", "content": given}] if isinstance(given, str) else given
    )
    inputs: list[JsonObject] = []
    for item in items:
        _add(inputs, item)
    last = items[-1] if items else {}
    continued = last.get("type", "message") in _CONTINUED and last.get("status") in _UNFINISHED
    return ChatInput.of(
        ChatBody(
            [*messages, *inputs],
            tools=_openai_tools(tools),
            chat_template_kwargs=msgspec.convert(
                field_of(parsed.chat_template_kwargs), JsonObject | None
            ),
            reasoning_effort=reasoning.effort if reasoning is not None else None,
            add_generation_prompt=not continued,
            continue_final_message=continued,
        ),
        keep,
    )


def _add(messages: list[JsonObject], item: JsonObject) -> None:
    """Add an item to the messages; thoughts, text and calls in a row are one assistant's."""
    kind, role = item.get("type"), item.get("role")
    last = messages[-1] if messages and messages[-1].get("role") == "assistant" else None
    if kind in _CALLS:
        call = _call(item)
        if last is not None:
            cast("list[JsonObject]", last.setdefault("tool_calls", [])).append(call)
        else:
            messages.append({"role": "assistant", "tool_calls": [call]})
    elif kind in _OUTPUTS:
        messages.append(
            {"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")}
        )
    elif kind == "reasoning":
        _join(messages, last, "reasoning", _thought(item))
    elif role == "assistant" and (text := _text_of(item.get("content"))) is not None:
        _join(messages, last, "content", text)
    elif role is not None:
        messages.append({**item})
    else:
        raise RequestError(f"input: unsupported item type {shown(str(kind))}", param="input")


def _join(messages: list[JsonObject], last: JsonObject | None, field: str, text: str) -> None:
    """Have the assistant's last message say this, too, or else a new one."""
    if last is not None and last.get(field) is None:
        last[field] = text
    else:
        messages.append({"role": "assistant", field: text})


def _call(item: JsonObject) -> JsonObject:
    name, arguments = item.get("name"), item.get("arguments")
    if item.get("type") == "custom_tool_call":
        arguments = json.dumps({"input": item.get("input") or ""}, ensure_ascii=False)
    elif item.get("namespace"):
        name = f"{item['namespace']}__{name}"
    return {
        "id": item.get("call_id"),
        "function": {"name": name, "arguments": arguments},
        "type": "function",
    }


def _thought(item: JsonObject) -> str:
    """Return the text of a reasoning item, its own or else its summary's."""
    if item.get("encrypted_content"):
        raise RequestError("input: encrypted content is not supported", param="input")
    for field in ("content", "summary"):
        if (text := _text_of(item.get(field))) is not None:
            return text
    return ""


def _text_of(content: object) -> str | None:
    """Return the text, or that of the first part."""
    if isinstance(content, str):
        return content
    first = next(iter(content_parts(content) or ()), None)
    text = cast("JsonObject", first).get("text") if isinstance(first, dict) else None
    return text if isinstance(text, str) else None


def _openai_tools(tools: list[JsonObject] | None) -> list[JsonObject] | None:
    """Return the functions among the tools as a chat has them; others are not rendered."""
    functions: list[JsonObject] = []
    for tool in tools or ():
        match tool.get("type"):
            case "function":
                functions.append(tool)
            case "custom":
                shim = {"name": tool.get("name"), "description": tool.get("description")}
                functions.append({**shim, "parameters": _SHIM})
            case "namespace":
                for one in content_parts(tool.get("tools")) or ():
                    inner = cast("JsonObject", one) if isinstance(one, dict) else {}
                    if inner.get("type") == "function":
                        name = f"{tool.get('name')}__{inner.get('name')}"
                        functions.append({**inner, "name": name})
            case _:
                pass
    return [{"type": "function", "function": {**one}} for one in functions] or None
