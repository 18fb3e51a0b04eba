"""A chat request as vLLM hands it to the chat template.

Source: vLLM 0.32 `renderers/{chat_utils,hf}.py`, `entrypoints/openai/chat_completion/protocol.py`.
"""

import json
from typing import Final, cast

from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvmesh.core.chat.chat import (
    ChatInput,
    JsonObject,
    content_parts,
    content_text,
    has_role,
    part_text,
    shaped,
    shaped_tools,
)
from kvmesh.core.chat.template import TEMPLATE_FAULTS
from kvmesh.core.chat.template_call import (
    TemplateCall,
    TemplateTraits,
    cut_of,
    tagged_messages,
)
from kvmesh.core.chat.template_format import looped_format
from kvmesh.core.engines.vllm.anthropic import BILLING_HEADER

TOOL_CALL_KEYS: Final = ("id", "function", "type")
FUNCTION_CALL_KEYS: Final = ("arguments", "name")
_LATE_SYSTEM: Final = [{"role": role, "content": "t"} for role in ("system", "user")] * 2
PART_KEYS: Final = frozenset(("type", "text", "refusal", "thinking", "closed", "uuid"))


def vllm_call(chat: ChatInput, template: TemplateTraits) -> TemplateCall:
    """Return the call vLLM makes: its fields, its key order, its content format."""
    content_format = template.content_format(looped_format)
    said = tagged_messages(chat, content_format)
    if chat.gathers_system and template.wants_system_first(refuses_late_system):
        said = _gathered(said)
    messages = shaped(said, content_format, _message)
    if not template.knows_developer and has_role(said, "developer"):
        messages = _merge_system([_developer_as_system(message) for message in messages])
    variables = dict(chat.chat_template_kwargs)
    if chat.reasoning_effort is not None:
        variables.setdefault("enable_thinking", chat.reasoning_effort != "none")
        variables["reasoning_effort"] = chat.reasoning_effort
    return TemplateCall(
        messages=messages,
        tools=shaped_tools(chat.tools, _tool) if chat.tools else None,
        documents=chat.documents,
        variables=variables,
        add_generation_prompt=chat.add_generation_prompt,
        cut=cut_of(chat),
    )


def refuses_late_system(source: str) -> bool:
    """Return whether a template fails on a second system message, in vLLM's bare environment."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    try:
        environment.from_string(source).render(messages=_LATE_SYSTEM, add_generation_prompt=False)
    except TEMPLATE_FAULTS:
        return True
    return False


def _gathered(messages: list[JsonObject]) -> list[JsonObject]:
    """Return the messages with one system message of all their system texts in front."""
    texts = [str(m["content"]) for m in messages if m["role"] == "system"]
    rest = [m for m in messages if m["role"] != "system"]
    return [{"role": "system", "content": "".join(texts)}, *rest]


def _message(message: JsonObject, content_format: str) -> JsonObject:
    """Return the fields vLLM keeps, content in the template's format."""
    role = message.get("role")
    content = _content(message.get("content"), role, content_format)
    kept: JsonObject = {"role": role, "content": content}
    if role == "assistant":
        if message.get("tool_calls"):
            calls = cast("list[JsonObject]", message["tool_calls"])
            kept["tool_calls"] = [_tool_call(call) for call in calls]
        reasoning = message.get("reasoning")
        reasoning = message.get("reasoning_content") if reasoning is None else reasoning
        if reasoning is not None:
            kept |= {"reasoning": reasoning, "reasoning_content": reasoning}
    elif role == "tool" and "tool_call_id" in message:
        kept["tool_call_id"] = message["tool_call_id"]
    elif role == "developer":
        kept["tools"] = message.get("tools")
    kept |= {k: message[k] for k in ("name", "task") if isinstance(message.get(k), str)}
    return kept


def _content(content: object, role: object, content_format: str) -> object:
    """Return the content as vLLM passes it; tool results are always a string."""
    parts = [content] if isinstance(content, str) else content_parts(content) or []
    if role == "system":
        kept = [_without_billing_header(part) for part in parts]
        parts = [part for part in kept if part is not None]
    if content_format == "string":
        return "\n".join(text for part in parts if (text := part_text(part)))
    if role == "tool":
        return content_text(parts)
    return [_part(part) for part in parts]


def _part(part: object) -> JsonObject:
    """Return a text part, with the fields vLLM does not know left in for the template; what stands
    for media stays as it is.
    """
    text = part_text(part)
    shaped: JsonObject = {"type": "text", "text": text}
    if isinstance(part, dict):
        fields = cast("JsonObject", part)
        if text is None:
            return fields
        shaped |= {key: value for key, value in fields.items() if key not in PART_KEYS}
    return shaped


def _without_billing_header(part: object) -> object | None:
    """Return a system part without the attribution line some clients vary on every request."""
    text = part_text(part)
    if text is None or not text.startswith(BILLING_HEADER):
        return part
    return text.partition("\n")[2] or None


def _developer_as_system(message: JsonObject) -> JsonObject:
    """Return a developer message as the system message a template without that role knows."""
    if message["role"] != "developer":
        return message
    return {k: v for k, v in message.items() if k != "tools"} | {"role": "system"}


def _merge_system(messages: list[JsonObject]) -> list[JsonObject]:
    """Return the messages with one system message, in front, if they had one anywhere else."""
    positions = [i for i, message in enumerate(messages) if message["role"] == "system"]
    if positions == [0]:
        return messages
    contents = [content_text(messages[i]["content"]) for i in positions]
    merged: JsonObject = {"role": "system", "content": "\n\n".join(filter(None, contents))}
    return [merged, *(m for m in messages if m["role"] != "system")]


def _tool(tool: JsonObject) -> JsonObject:
    """Return a tool with vLLM's fields in vLLM's order; others are dropped, missing ones null."""
    function = cast("JsonObject", tool.get("function") or {})
    deferred = tool.get("defer_loading")
    optional = {"strict": function.get("strict"), "defer_loading": function.get("defer_loading")}
    if optional["defer_loading"] is None:
        optional["defer_loading"] = deferred
    shaped = {key: function.get(key) for key in ("name", "description", "parameters")}
    shaped |= {key: value for key, value in optional.items() if value is not None}
    outer: JsonObject = {"type": tool.get("type", "function"), "function": shaped}
    return outer if deferred is None else outer | {"defer_loading": deferred}


def _tool_call(call: JsonObject) -> JsonObject:
    """Return an assistant's tool call in vLLM's key order, its arguments decoded."""
    function = dict(cast("JsonObject", call.get("function") or {}))
    function["arguments"] = _arguments(function.get("arguments"))
    fields: JsonObject = call | {"function": _in_order(function, FUNCTION_CALL_KEYS)}
    return _in_order(fields, TOOL_CALL_KEYS)


def _in_order(fields: JsonObject, first: tuple[str, ...]) -> JsonObject:
    """Return the fields with the keys `first` in front; templates print objects in their order."""
    return {key: fields[key] for key in first if key in fields} | fields


def _arguments(arguments: object) -> object:
    """Return a tool call's arguments as an object; what is not one becomes empty."""
    parsed = arguments
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except ValueError:
            parsed = None
    return cast("object", parsed) if isinstance(parsed, dict) else {}
