"""A Hugging Face tokenizer with its chat templates and caches; what reads files is outside."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from kvmesh.core.chat.chat import ChatInput, JsonObject, chat_of_texts
from kvmesh.core.chat.template import ChatTemplate
from kvmesh.core.chat.template_call import TemplateCall, TemplateTraits
from kvmesh.core.engines.registry import engine_of
from kvmesh.core.prompts.message_packer import MessagePacker
from kvmesh.core.prompts.plain_chats import NOTHING, PlainChats, Rest
from kvmesh.core.prompts.segment_cache import ByteBudgetCache, SegmentCache, unpack_ids
from kvmesh.core.prompts.text_packer import MOST_MESSAGES, roles_and_texts
from kvmesh.core.prompts.tokenizer_facts import (
    TextBackend,
    TokenizerOptions,
    TokenizerStatistics,
)
from kvmesh.errors import RequestError

MOST_WHOLE: Final = 8
"""Chats of so many messages are kept whole: a longer one is the next turn of one that was, and its
segments are known.
"""

_FIELDS: Final = 2
"""Of a message that is nothing but a role and a content."""

_ANY_CHAT: Final = ChatInput([{"role": "user", "content": "Hello"}])
_ANY_IMAGE: Final[JsonObject] = {"type": "image"}


class HfTokenizer:
    """The tokenizer and chat templates of a Hugging Face model directory.

    A repeated chat costs one look-up, a repeated message one segment look-up; only new text is
    tokenised, without holding the interpreter lock.
    """

    def __init__(
        self,
        name: str,
        backend: TextBackend,
        templates: Mapping[str, ChatTemplate],
        options: TokenizerOptions,
    ) -> None:
        self.name = name
        self.vocab_size = backend.vocab_size
        self._backend = backend
        self.affixes = (backend.prefix, backend.suffix)
        self.inline_characters = backend.inline_characters
        self._templates = dict(templates)
        self._options = options
        self._default = self._templates.get("default")
        engine = engine_of(options.engine)
        self._engine_shape = engine.chat
        for template in self._templates.values():
            # Shaping reads the template's source once: here, and not while a client waits.
            self._shape(_ANY_CHAT, template)
        self.sees_media = bool(self._templates) and all(map(self._shows, self._templates.values()))
        capacity = options.cache_bytes
        self._prompts = ByteBudgetCache[bytes](capacity // 8)
        self._segments = SegmentCache(
            backend.added_tokens, backend.encode_batch, capacity=capacity - capacity // 4
        )
        self._other_chats = 0
        self._plain = {
            template: PlainChats(
                template, self._shape, self._segments, engine.chat_marks, capacity // 8
            )
            for template in self._templates.values()
        }
        self._known = {
            template: MessagePacker(template, self._shape, self._segments)
            for template in self._templates.values()
        }
        self._packer = self._plain[self._default].packer if self._default else None

    def bound_new_text(self, characters: float) -> None:
        """Tokenise no more text at once in this thread that was not seen before (`TextBackend`)."""
        self._backend.bound_new_text(characters)

    def pack_chat(self, chat: ChatInput, domain: str = "") -> bytes:
        """Return the ids (little-endian u32) of the chat as the engine will render it.

        What was seen in one `domain` makes no other quicker. Raises `RequestError` where the engine
        would answer 400 too: no template, or one that refuses the conversation.
        """
        template = self._template(chat)
        try:
            plain = self._pack_texts(chat, template, domain)
            packed = self._known[template].pack(chat, domain) if plain is None else plain
        except (UnicodeEncodeError, TypeError) as error:
            raise _no_unicode(error) from error
        self._other_chats += plain is None
        if packed is not None:
            return packed
        whole = not template.uses_clock and len(chat.messages) <= MOST_WHOLE
        key = _chat_key(chat) if whole else b""
        if key and domain:
            key = b"%b\0%b" % (domain.encode("utf-8", "surrogatepass"), key)
        packed = self._prompts.get(key) if key else None
        if packed is None:
            packed = self._render(chat, template, domain)
            if key:
                self._prompts.put(key, packed)
        return packed

    def pack_messages(self, messages: Sequence[tuple[str, str]], domain: str = "") -> bytes:
        """Return what `pack_chat` does of a chat of roles and contents that asks for nothing else.

        Raises `RequestError` as it does.
        """
        packed = None
        if self._packer is not None and not domain:
            try:
                packed = self._packer.pack(messages)
            except (UnicodeEncodeError, TypeError) as error:
                raise _no_unicode(error) from error
        return self.pack_chat(chat_of_texts(messages), domain) if packed is None else packed

    def encode_chat(self, chat: ChatInput) -> "array[int]":
        """Return what `pack_chat` does, as integers."""
        return unpack_ids(self.pack_chat(chat))

    def pack(self, text: str, *, add_special_tokens: bool, domain: str = "") -> bytes:
        """Return the ids of `text`, with the model's own BOS and EOS when asked."""
        packed = self._encode(text, domain)
        if add_special_tokens:
            packed = self._backend.prefix + packed + self._backend.suffix
        return packed

    def encode(self, text: str, *, add_special_tokens: bool) -> "array[int]":
        """Return what `pack` does, as integers."""
        return unpack_ids(self.pack(text, add_special_tokens=add_special_tokens))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, special tokens left out."""
        return self._backend.decode(ids)

    def statistics(self) -> TokenizerStatistics:
        """Return backend and cache counters."""
        return TokenizerStatistics(
            backend=self._backend.name,
            note=self._backend.note,
            segments=self._segments.statistics(),
            prompts=self._prompts.statistics(),
            plain_chats=sum(one.chats + one.packer.packed for one in self._plain.values()),
            other_chats=self._other_chats,
            unlike=next((one.reason for one in self._plain.values() if one.reason), ""),
        )

    def _template(self, chat: ChatInput) -> ChatTemplate:
        """Return the template for a chat with or without tools."""
        template = self._templates.get("tool_use") if chat.tools else None
        template = template or self._default
        if template is None:
            raise RequestError(
                f"model {self.name} has no chat template: send a prompt to /v1/completions, or "
                "start kvmesh with one",
                param="messages",
            )
        return template

    def _render(self, chat: ChatInput, template: ChatTemplate, domain: str) -> bytes:
        """Return the packed ids of the rendered chat."""
        call = self._shape(chat, template)
        packed = self._encode(template.render(call), domain)
        if not call.suffix:
            return packed
        return packed + self._encode(call.suffix, domain) + self._backend.suffix

    def _shows(self, template: ChatTemplate) -> bool:
        """Return whether its engine hands media to a template, which goes through parts."""
        chat = ChatInput([{"role": "user", "content": [_ANY_IMAGE]}])
        content = self._shape(chat, template).messages[0]["content"]
        return isinstance(content, list) and _ANY_IMAGE in content

    def _shape(self, chat: ChatInput, template: TemplateTraits) -> TemplateCall:
        """Return the chat as the engine hands it to the template, its default arguments added."""
        if self._options.template_kwargs:
            merged = {**self._options.template_kwargs, **chat.chat_template_kwargs}
            chat = msgspec.structs.replace(chat, chat_template_kwargs=merged)
        return self._engine_shape(chat, template)

    def _pack_plain(self, chat: ChatInput, template: ChatTemplate, domain: str) -> bytes | None:
        """Return the packed ids of a chat that is only roles and texts; None for any other."""
        if chat.truncated or chat.continue_final_message or chat.gathers_system:
            return None
        plain, rest = self._plain[template], NOTHING
        if (
            chat.tools
            or chat.chat_template_kwargs
            or not (chat.documents is chat.tool_choice is chat.reasoning_effort is None)
        ):
            rest = Rest(
                chat.tools,
                chat.documents,
                chat.chat_template_kwargs,
                chat.tool_choice,
                chat.reasoning_effort,
            )
        elif chat.add_generation_prompt and not domain:
            packed = plain.packer.pack(chat.messages)
            if packed is not None:
                return packed
        said = roles_and_texts(chat.messages)
        if said is None:
            return None
        return plain.pack(*said, chat.add_generation_prompt, rest, domain)

    def _pack_texts(self, chat: ChatInput, template: ChatTemplate, domain: str) -> bytes | None:
        """Return the packed ids of a chat that is only roles and texts, or lists of parts that its
        engine makes strings of, as of a chat of these strings; None for any other.
        """
        given = chat.messages
        if len(given) > MOST_MESSAGES or any(len(one) != _FIELDS for one in given):
            return None
        if not any(isinstance(one.get("content"), list) for one in given):
            return self._pack_plain(chat, template, domain)
        made = self._shape(chat, template).messages
        if len(made) != len(given) or not all(map(_is_text, given, made)):
            return None
        said: list[JsonObject] = [{"role": one["role"], "content": one["content"]} for one in made]
        return self._pack_plain(msgspec.structs.replace(chat, messages=said), template, domain)

    def _encode(self, text: str, domain: str) -> bytes:
        """Return packed ids. Raises `RequestError` for text that is not Unicode."""
        try:
            return self._segments.encode(text, domain)
        except (UnicodeEncodeError, TypeError) as error:
            raise _no_unicode(error) from error


def _is_text(given: JsonObject, made: JsonObject) -> bool:
    """Return whether an engine makes of a message no more than a role and a text."""
    role, content = made.get("role"), made.get("content")
    return role == given.get("role") and isinstance(role, str) and isinstance(content, str)


def _chat_key(chat: ChatInput) -> bytes:
    """Return bytes that differ for different chats; empty for one msgpack cannot hold."""
    try:
        return msgspec.msgpack.encode(chat)
    except (OverflowError, UnicodeEncodeError, TypeError):
        return b""


def _no_unicode(error: Exception) -> RequestError:
    return RequestError(f"the prompt holds a lone surrogate: {error}")
