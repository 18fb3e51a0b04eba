"""A chat request as SGLang hands it to the chat template.

Source: SGLang 0.5.23 `entrypoints/openai/{serving_chat,protocol}.py`,
`parser/jinja_template_utils.py`.
"""

import json
from typing import Final, cast

from jinja2 import nodes

from kvmesh.core.chat.chat import ChatInput, JsonObject, content_parts, part_text, shaped
from kvmesh.core.chat.syntax import reads, syntax_tree
from kvmesh.core.chat.template_call import (
    ContentFormat,
    TemplateCall,
    TemplateTraits,
    tagged_messages,
)
from kvmesh.errors import RequestError

MEDIA_WORDS: Final = ("image", "audio", "video", "vision")
PRINTED_PARTS: Final = frozenset(("text", "input_text"))
MESSAGE_KEYS: Final = ("tool_call_id", "name", "phase", "reasoning_content", "tools", "prefix")
FUNCTION_KEYS: Final = ("description", "name", "parameters", "strict", "defer_loading")


def sglang_call(chat: ChatInput, template: TemplateTraits) -> TemplateCall:
    """Return the call SGLang makes. Raises `RequestError` for tool arguments that are no object.

    A final assistant message is not rendered: it is continued as a suffix, or shown as a user's.
    """
    content_format = template.content_format(sglang_format)
    messages = shaped(tagged_messages(chat, content_format), content_format, _message)
    suffix = ""
    last = messages[-1]
    content = last["content"]
    if not chat.truncated and last["role"] == "assistant" and isinstance(content, str):
        messages.pop()
        if chat.continue_final_message:
            suffix = content
        else:
            messages.append({"role": "user", "content": content})
    variables: JsonObject = {}
    if chat.reasoning_effort is not None:
        thinking = chat.reasoning_effort != "none"
        variables = {"reasoning_effort": chat.reasoning_effort}
        variables |= {"thinking": thinking, "enable_thinking": thinking}
    return TemplateCall(
        messages=messages,
        tools=_tools(chat),
        variables=variables | chat.chat_template_kwargs,
        add_generation_prompt=not chat.truncated,
        cut="media" if chat.truncated else "none",
        suffix=suffix,
    )


def sglang_format(source: str) -> ContentFormat:
    """Return the content format SGLang would detect."""
    if any(word in source for word in MEDIA_WORDS):
        return "openai"
    for loop in syntax_tree(source).find_all(nodes.For):
        if any(reads(loop.iter, name, "content") for name in ("message", "msg", "m")):
            return "openai"
    return "string"


def _message(message: JsonObject, content_format: str) -> JsonObject:
    """Return the fields SGLang keeps, content in the template's format, none of them null."""
    role = str(message.get("role", "")).lower()
    content = message.get("content")
    parts = content_parts(content)
    if parts is not None:
        texts = [text for part in parts if (text := _part_text(part)) is not None]
        as_list = content_format == "openai" and role != "tool"
        content = [{"type": "text", "text": t} for t in texts] if as_list else " ".join(texts)
    kept: JsonObject = {"role": role, "content": "" if content is None else content}
    if role != "user":
        kept |= {key: message[key] for key in MESSAGE_KEYS if message.get(key) is not None}
        if message.get("tool_calls") is not None:
            calls = cast("list[JsonObject]", message["tool_calls"])
            kept["tool_calls"] = [_tool_call(call, decode=role == "assistant") for call in calls]
    if parts is not None and content_format == "openai":
        kept["content"] = kept.pop("content")
    return kept


def _part_text(part: object) -> str | None:
    """Return the text of the part types SGLang prints."""
    text = part_text(part)
    kind = cast("JsonObject", part).get("type") if isinstance(part, dict) else None
    return text if kind in PRINTED_PARTS else None


def _tools(chat: ChatInput) -> list[JsonObject] | None:
    """Return the tools that the tool choice leaves."""
    if not chat.tools or chat.tool_choice == "none":
        return None
    chosen = None
    if isinstance(chat.tool_choice, dict):
        chosen = _function(cast("JsonObject", chat.tool_choice)).get("name")
    shaped = [_tool(t) for t in chat.tools if chosen in (None, _function(t).get("name"))]
    return shaped or None


def _tool(tool: JsonObject) -> JsonObject:
    """Return a tool in SGLang's shape: the client's key order, missing fields null."""
    function = {k: v for k, v in _function(tool).items() if k in FUNCTION_KEYS}
    function |= {key: None for key in FUNCTION_KEYS if key not in function}
    deferred = tool.get("defer_loading")
    if function["defer_loading"] is None:
        function["defer_loading"] = deferred
    for key in ("strict", "defer_loading"):
        if function[key] is None:
            del function[key]
    kind = tool.get("type", "function")
    return {"type": kind, "function": function, "defer_loading": deferred}


def _tool_call(call: JsonObject, *, decode: bool) -> JsonObject:
    """Return a tool call in SGLang's shape, an assistant's arguments decoded."""
    function = _function(call)
    arguments = function.get("arguments")
    if decode and isinstance(arguments, str):
        arguments = _object(arguments)
    return {
        "id": call.get("id"),
        "index": call.get("index"),
        "type": call.get("type", "function"),
        "function": {"name": function.get("name"), "arguments": arguments},
    }


def _function(owner: JsonObject) -> JsonObject:
    """Return the `function` object of a tool, a tool choice or a tool call."""
    function = owner.get("function")
    return cast("JsonObject", function) if isinstance(function, dict) else {}


def _object(text: str) -> object:
    """Return the JSON object in `text`. Raises `RequestError`, where SGLang answers 400 too."""
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise RequestError(
            f"tool call arguments {text[:80]!r} are not a JSON object", param="messages"
        )
    return cast("object", parsed)
