"""Anthropic's messages as the chat that vLLM makes of them.

Source: vLLM 0.32 `entrypoints/anthropic/{protocol,serving}.py`.
"""

import json
from typing import Final, Literal

import msgspec

from kvmesh.core.chat.chat import ChatBody, ChatInput, JsonObject, KeepMedia, keep_none
from kvmesh.core.chat.inference import Parsed, field_of
from kvmesh.core.chat.media import NAME
from kvmesh.errors import RequestError

BILLING_HEADER: Final = "x-anthropic-billing-header"
"""Begins system text that some clients vary on every request."""


class _Tool(msgspec.Struct):
    name: str
    input_schema: JsonObject
    description: str | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class _Change(msgspec.Struct):
    """What a `tool_addition` or `tool_removal` block names, or brings along."""

    type: Literal["tool_reference", "tool_definition"]
    name: str = ""
    definition: _Tool | None = None


class _Block(msgspec.Struct):
    type: Literal[
        "text",
        "image",
        "tool_use",
        "tool_result",
        "tool_reference",
        "thinking",
        "redacted_thinking",
        "tool_addition",
        "tool_removal",
    ]
    text: str | None = None
    source: JsonObject | None = None
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    input: JsonObject | None = None
    content: str | list[JsonObject] | None = None
    thinking: str | None = None
    tool: _Change | None = None
    uuid: str | None = None


class _Message(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]


class _Thinking(msgspec.Struct):
    type: Literal["enabled", "disabled", "adaptive"]


class _Output(msgspec.Struct):
    effort: str | None = None


def chat_of_messages(parsed: Parsed, keep: KeepMedia = keep_none) -> ChatInput:
    """Return the chat of an Anthropic body. Raises one of `UNREADABLE`, or `RequestError`."""
    said = msgspec.convert(field_of(parsed.messages), list[_Message])
    system = msgspec.convert(field_of(parsed.system), str | list[_Block] | None)
    thinking = msgspec.convert(field_of(parsed.thinking), _Thinking | None)
    output = msgspec.convert(field_of(parsed.output_config), _Output | None)
    kwargs = msgspec.convert(field_of(parsed.chat_template_kwargs), JsonObject | None)
    tools = msgspec.convert(field_of(parsed.tools), list[_Tool] | None)
    effort = output.effort if output is not None else None
    if thinking is not None and thinking.type == "disabled":
        effort = "none"
    messages: list[JsonObject] = []
    if system and (text := _system_text(system, whole=True)):
        messages.append({"role": "system", "content": text})
    for message in said:
        messages += _converted(message)
    chat = ChatInput.of(
        ChatBody(
            messages,
            tools=_openai_tools(_tools_in_effect(tools, said)),
            chat_template_kwargs=kwargs,
            reasoning_effort=effort,
        ),
        keep,
    )
    late = any(message.role == "system" for message in said)
    return msgspec.structs.replace(chat, gathers_system=late)


def _system_text(content: str | list[_Block], *, whole: bool = False) -> str:
    """Return system text without the attribution some clients vary on every request; one string
    that is the request's own system text stays as it is (`whole`).
    """
    if isinstance(content, str):
        return "" if content.startswith(BILLING_HEADER) and not whole else content
    texts = [block.text for block in content if block.type == "text" and block.text]
    return "".join(text for text in texts if not text.startswith(BILLING_HEADER))


def _converted(message: _Message) -> list[JsonObject]:
    """Return the messages that one of Anthropic's becomes: results of tools stand in front."""
    if message.role == "system":
        text = _system_text(message.content)
        return [{"role": "system", "content": text}] if text else []
    own: JsonObject = {"role": message.role}
    if isinstance(message.content, str):
        return [own | {"content": message.content}]
    blocks, user = message.content, message.role == "user"
    results = [_results(one) for one in blocks if user and one.type == "tool_result"]
    before = [made for result in results for made in result]
    parts = [part for one in blocks if (part := _part(one, user=user)) is not None]
    thoughts = [one.thinking for one in blocks if one.type == "thinking"]
    calls = [_call(one) for one in blocks if one.type == "tool_use"]
    if any(thought is not None for thought in thoughts):
        own["reasoning"] = "".join(filter(None, thoughts))
    if calls:
        own["tool_calls"] = calls
    if parts:
        alone = len(parts) == 1 and parts[0]["type"] == "text"
        own["content"] = parts[0]["text"] if alone else parts
    return before if user and not parts else [*before, own]


def _part(block: _Block, *, user: bool) -> JsonObject | None:
    """Return a block as a part of its message's content; None for one that becomes none."""
    match block.type:
        case "text" if block.text:
            return {"type": "text", "text": block.text}
        case "image" if block.source:
            return _image(block.uuid if user else None)
        case "tool_result" if not user:
            said = str(block.content) if block.content else ""
            return {"type": "text", "text": f"Tool result: {said}"}
        case _:
            return None


def _image(name: object) -> JsonObject:
    """Return an image as a chat's part, of the name that was put in the place of its content."""
    image: JsonObject = {"type": "image_url"}
    return image | {NAME: name} if isinstance(name, str) else image


def _call(block: _Block) -> JsonObject:
    function: JsonObject = {"name": block.name or "", "arguments": json.dumps(block.input or {})}
    return {"id": block.id or "call", "type": "function", "function": function}


def _results(block: _Block) -> list[JsonObject]:
    """Return a tool's result as messages: its text, its images, the tools it names."""
    items = block.content if isinstance(block.content, list) else []
    texts = [item.get("text", "") for item in items if item.get("type") == "text"]
    if not all(isinstance(text, str) for text in texts):
        raise RequestError("messages: the text of a tool's result is no text", param="messages")
    text = block.content if isinstance(block.content, str) else "\n".join(map(str, texts))
    call = block.tool_use_id or ""
    made: list[JsonObject] = [{"role": "tool", "tool_call_id": call, "content": text}]
    images = [_image(item.get(NAME)) for item in items if item.get("type") == "image"]
    if images:
        made.append({"role": "user", "content": images})
    names = [
        {"type": "tool_reference", "name": name}
        for item in items
        if item.get("type") == "tool_reference"
        and (name := item.get("tool_name") or item.get("name"))
    ]
    if names:
        made.append({"role": "tool", "tool_call_id": call, "content": names})
    return made


def _tools_in_effect(tools: list[_Tool] | None, said: list[_Message]) -> list[_Tool] | None:
    """Return the tools that are declared when the conversation is at its end."""
    changes = [
        block
        for message in said
        if not isinstance(message.content, str)
        for block in message.content
        if block.type in {"tool_addition", "tool_removal"} and block.tool is not None
    ]
    if not changes:
        return tools
    known = {tool.name: tool for tool in tools or ()}
    removed: set[str] = set()
    for block in changes:
        assert block.tool is not None
        name, definition = block.tool.name, block.tool.definition
        if definition is not None:
            name = definition.name
            known[name] = definition
        elif name not in known:
            raise RequestError(f"messages: {block.type} names no declared tool", param="messages")
        elif block.type == "tool_addition":
            known[name] = msgspec.structs.replace(known[name], defer_loading=None)
        (removed.add if block.type == "tool_removal" else removed.discard)(name)
    return [tool for name, tool in known.items() if name not in removed]


def _openai_tools(tools: list[_Tool] | None) -> list[JsonObject] | None:
    if tools is None:
        return None
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.input_schema
                if "type" in tool.input_schema
                else {**tool.input_schema, "type": "object"},
                "strict": tool.strict,
                "defer_loading": tool.defer_loading,
            },
        }
        for tool in tools
    ]
