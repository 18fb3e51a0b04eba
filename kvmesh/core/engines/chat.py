"""A chat as plain `transformers` renders it: for engines whose own way is not known."""

from typing import Final

from kvmesh.core.chat.chat import ChatInput, JsonObject
from kvmesh.core.chat.template_call import TemplateCall, TemplateTraits, cut_of, tagged_messages
from kvmesh.core.chat.template_format import looped_format

REASONING_FIELDS: Final = ("reasoning_content", "thinking", "reasoning")


def transformers_call(chat: ChatInput, template: TemplateTraits) -> TemplateCall:
    """Return the chat as it came, which is what `apply_chat_template` renders."""
    messages = tagged_messages(chat, template.content_format(looped_format))
    return TemplateCall(
        messages=[_with_reasoning_names(message) for message in messages],
        tools=chat.tools,
        documents=chat.documents,
        variables=chat.chat_template_kwargs,
        add_generation_prompt=chat.add_generation_prompt,
        cut=cut_of(chat),
    )


def _with_reasoning_names(message: JsonObject) -> JsonObject:
    """Return a message with its reasoning under each name that templates read."""
    values = (message.get(key) for key in REASONING_FIELDS)
    reasoning = next((value for value in values if value is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}
