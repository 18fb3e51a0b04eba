"""How each engine reshapes a chat request before its template sees it.

The same body becomes different prompts in vLLM, SGLang and plain transformers; kvmesh must hash
the tokens of the engine that will serve it.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal

from kvmesh.core.chat.chat import ChatInput, JsonObject
from kvmesh.core.chat.template import ChatTemplate, TemplateCall, cut_of, tagged_messages
from kvmesh.core.engines.sglang.chat import sglang_call
from kvmesh.core.engines.vllm.chat import vllm_call

EngineKind = Literal["vllm", "sglang", "transformers"]

REASONING_FIELDS: Final = ("reasoning_content", "thinking", "reasoning")


def transformers_call(chat: ChatInput, template: ChatTemplate) -> TemplateCall:
    """Return the chat as it came, which is what `apply_chat_template` renders."""
    messages = tagged_messages(chat, template.vllm_format)
    return TemplateCall(
        messages=[_with_reasoning_names(message) for message in messages],
        tools=chat.tools,
        documents=chat.documents,
        variables=chat.chat_template_kwargs,
        add_generation_prompt=chat.add_generation_prompt,
        cut=cut_of(chat),
    )


ENGINE_CALLS: Final[Mapping[EngineKind, Callable[[ChatInput, ChatTemplate], TemplateCall]]] = {
    "vllm": vllm_call,
    "sglang": sglang_call,
    "transformers": transformers_call,
}
"""Per engine: the chat as that engine hands it to the template. Each may raise `RequestError`."""


def _with_reasoning_names(message: JsonObject) -> JsonObject:
    """Return a message with its reasoning under each name that templates read."""
    values = (message.get(key) for key in REASONING_FIELDS)
    reasoning = next((value for value in values if value is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}
