"""How each engine reshapes a chat request before its template sees it.

The same body becomes different prompts in vLLM, SGLang and plain transformers; kvmesh must hash
the tokens of the engine that will serve it.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal

from kvmesh.core.chat import ChatInput
from kvmesh.core.chat_sglang import sglang_call
from kvmesh.core.chat_template import ChatTemplate, TemplateCall, cut_of, tagged_messages
from kvmesh.core.chat_vllm import vllm_call

EngineKind = Literal["vllm", "sglang", "transformers"]


def transformers_call(chat: ChatInput, template: ChatTemplate) -> TemplateCall:
    """Return the chat as it came, which is what `apply_chat_template` renders."""
    return TemplateCall(
        messages=tagged_messages(chat, template.vllm_format),
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
