"""Token ids of chats that say known messages again: only what is printed otherwise than before is.

What a template prints of each message is tokenized once, for as long as the message stands among
the same neighbours and the rest of the chat that its template looks at is the same.
"""

from collections.abc import Sequence
from itertools import count
from typing import Final, cast

from jinja2 import Undefined
from jinja2.utils import Namespace

from kvmesh.core.chat.chat import ChatInput, KnownMessage, KnownTools
from kvmesh.core.chat.message_loop import MessageLoop, Place
from kvmesh.core.chat.template import ChatTemplate
from kvmesh.core.chat.template_call import ChatShape
from kvmesh.core.prompts.plain_chats import Rest, packed_rest
from kvmesh.core.prompts.segment_cache import SegmentCache

MOST_CONTEXTS: Final = 256
MOST_CHARACTERS: Final = 4096
"""Of a text that prints depend on besides their messages; with a longer one all is rendered."""

_SCALARS: Final = (str, int, float, type(None), Undefined)
_CONTEXTS: Final = count(1)
_ATTRIBUTES: Final = "_Namespace__attrs"
"""Where Jinja keeps what a namespace holds, which a template may read."""


class _Prints:
    """What a template prints of messages: known of those that stand where they stood before."""

    def __init__(self, loop: MessageLoop, said: Sequence[KnownMessage]) -> None:
        self._loop = loop
        self._said = said
        self._places: list[Place] = []
        self._chosen: list[int] = []

    def choose(self, context: int) -> list[int]:
        """Return which messages have to be printed."""
        said = self._said
        self._places = self._loop.places([one.number for one in said], context)
        pairs = enumerate(zip(said, self._places, strict=True))
        self._chosen = [index for index, (one, place) in pairs if one.seen != place]
        return self._chosen

    def joined(self, texts: list[str], segments: SegmentCache, domain: str) -> bytes | None:
        """Return all ids, told what was printed in front of all messages, of those that were
        chosen, and behind; None where these are not those of the texts put together.
        """
        said, chosen = self._said, self._chosen
        for place, text in enumerate(texts[1:-1]):
            if segments.ends_open(text) or not segments.starts_anew(text):
                said[chosen[place]].seen = None
        if segments.ends_open(texts[0]) or not segments.starts_anew(texts[-1]):
            return None
        if any(said[index].seen is None for index in chosen):
            return None
        first, *fresh, last = segments.encode_apart(texts, domain)
        found = [one.ids for one in said]
        for index, ids in zip(chosen, fresh, strict=True):
            found[index] = ids
            if len(ids) <= said[index].size:
                said[index].seen, said[index].ids = self._places[index], ids
        return b"".join((first, *found, last))


class MessagePacker:
    """The chats of one template and one engine's way to shape them. From one thread."""

    def __init__(self, template: ChatTemplate, shape: ChatShape, segments: SegmentCache) -> None:
        self._template = template
        self._shape = shape
        self._segments = segments
        self._contexts: dict[object, int] = {}

    def pack(self, chat: ChatInput, domain: str) -> bytes | None:
        """Return the packed ids of a chat; None where it must be rendered as a whole.

        Raises what shaping and tokenizing raise.
        """
        said = cast("list[KnownMessage]", chat.messages)
        if self._template.loop is None or chat.truncated or chat.continue_final_message:
            return None
        if not all(type(one) is KnownMessage and one.seen is not None for one in said):
            return None
        call = self._shape(chat, self._template)
        if call.suffix or call.messages != [one.made for one in said]:
            return None
        prints = _Prints(self._template.loop, said)
        texts = self._template.render_messages(
            call,
            [one.shown for one in said],
            lambda values: prints.choose(self._context(chat, values)),
        )
        return None if texts is None else prints.joined(texts, self._segments, domain)

    def _context(self, chat: ChatInput, values: Sequence[object]) -> int:
        """Return a number for all that prints depend on besides messages. Raises `ValueError` for
        what cannot be told apart from others of its kind.
        """
        rest = Rest(
            None,
            chat.documents,
            chat.chat_template_kwargs,
            chat.tool_choice,
            chat.reasoning_effort,
        )
        tools = chat.tools.number if isinstance(chat.tools, KnownTools) else 0
        key = tools, chat.add_generation_prompt, packed_rest(rest), tuple(map(_told, values))
        if len(self._contexts) >= MOST_CONTEXTS:
            self._contexts.clear()
        return self._contexts.setdefault(key, next(_CONTEXTS))


def _told(value: object) -> object:
    """Return what differs for values that a template may tell apart."""
    if isinstance(value, Namespace):
        fields: dict[str, object] = getattr(value, _ATTRIBUTES)
        return tuple((name, _told(one)) for name, one in fields.items())
    if not isinstance(value, _SCALARS) or len(str(value)) > MOST_CHARACTERS:
        raise ValueError("a print depends on what cannot be told apart")
    return type(value), str(value)
