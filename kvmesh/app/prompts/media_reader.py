"""Images, sounds and videos of chats: named in their bodies, and read as their engine's tokens."""

from functools import partial
from itertools import islice
from typing import Final, cast

from kvmesh.app.prompts.beginning import MOST_READ_BYTES
from kvmesh.app.prompts.token_check import MAX_IN_FLIGHT, TokenCheck
from kvmesh.app.prompts.tokenizer import Tokenizer
from kvmesh.core.chat.chat import ChatInput, JsonObject
from kvmesh.core.chat.inference import Parsed, decode_request, read_chat
from kvmesh.core.chat.media import (
    LISTS,
    NAME,
    UNNAMED,
    MediaPart,
    Sent,
    may_hold_media,
    media_part,
    media_parts,
    named_body,
)
from kvmesh.core.chat.prompt_form import is_given
from kvmesh.core.engines.engine import Engine
from kvmesh.core.prompts.media_tokens import MediaTokens, Span, Told
from kvmesh.core.prompts.segment_cache import unpack_ids
from kvmesh.errors import RequestError
from kvmesh.transport.http.server.request import Request

MOST_PART_BYTES: Final = 32 << 20
"""Of a part that its engine is asked about: it gets it a second time."""

CHANGED: Final = "a field of the request changes what its engine makes of it"


class MediaReader:
    """Reads media for an engine that takes names for them and tells tokens (`Engine.names_media`).

    `tokenizer` prints something where they stand (`sees_media`), `check` asks engines. `tells` is
    what starts one that tells names of its own.
    """

    def __init__(self, tokenizer: Tokenizer, check: TokenCheck, tells: str) -> None:
        self._tells = tells
        self._tokenizer = tokenizer
        self._check = check
        self.tokens = MediaTokens()

    def name(self, kind: str, parsed: Parsed, asked: Request, body: bytes) -> tuple[Parsed, bytes]:
        """Return a prompt of that kind of endpoint with its media named in the place of their
        content, and its body, content and all; the same where there are none. Engines are asked for
        the tokens of the first that are not known, for the next turn.

        May run in a thread.
        """
        messages = parsed.messages
        if kind not in LISTS or not may_hold_media(body, kind):
            return parsed, body
        if isinstance(messages, list) and not media_parts(messages):
            return parsed, body
        named = named_body(body, parsed.cache_salt or "", kind)
        if named is None:
            return parsed, body
        if not changes_names(parsed):
            for one in islice(filter(self._wants, named.sent), MAX_IN_FLIGHT):
                self._learn(one, parsed.model or "", asked)
        again: Parsed | None = None
        if kind == "chat" and len(named.read) <= MOST_READ_BYTES:
            again = read_chat(named.read)
        return again or decode_request(named.read), named.body

    def why_not(self, part: JsonObject, kind: str) -> str:
        """Return why the tokens of a part of that kind of endpoint are not known, in words."""
        found = media_part(part)
        if found is None:
            if isinstance(part.get(NAME), str):
                return "it has fields besides its content"
            return "its content did not come with it"
        if self.tokens.gave_up(found.name):
            return "no engine told what it makes of it, or that cannot be followed"
        if kind == UNNAMED and not self._check.tells_names():
            return f"its engine tells no name of its own: start it with {self._tells}"
        return "it is new: its engine is asked for its tokens, the next turn follows it"

    def _wants(self, sent: Sent) -> bool:
        return (sent.named or self._check.tells_names()) and self.tokens.wants(sent.name)

    def _learn(self, sent: Sent, model: str, asked: Request) -> None:
        if len(sent.content) > MOST_PART_BYTES:
            self.tokens.learn(sent.name, (), Told(()))
            return
        put_off = partial(self.tokens.put_off, sent.name)
        self._check.ask_of_media(model, sent, asked, partial(self._take, sent.media), put_off)

    def _take(self, found: MediaPart, told: Told | None) -> None:
        chat = ChatInput(
            [{"role": "user", "content": [{"type": found.kind}]}], add_generation_prompt=False
        )
        try:
            ours = unpack_ids(self._tokenizer.pack_chat(chat))
        except RequestError:  # its template wants more than one part: nothing can be learned
            told, ours = Told(()), unpack_ids(b"")
        self.tokens.learn(found.name, ours, told)


class Followed:
    """The media of one chat: the `names` of those that are followed, and in words why the next is
    not. `media` None: none is, for the reason `why`. `kind` is that of the endpoint.
    """

    def __init__(self, media: MediaReader | None, kind: str, why: str) -> None:
        self.names: list[str] = []
        self._media = media
        self._kind = kind
        self._why = why

    def keep(self, part: JsonObject, message: JsonObject) -> JsonObject | None:
        """Return what stands for a part of media; None where its tokens are not known."""
        media = self._media
        if media is None:
            return None
        found = media_part(part)
        if message.get("role") == "tool":
            self._why = "engines make texts of the results of tools"
        elif found is None or not media.tokens.knows(found.name):
            self._why = media.why_not(part, self._kind)
        else:
            self.names.append(found.name)
            return {"type": found.kind}
        return None

    def expand(self, packed: bytes | str) -> tuple[bytes, list[Span]] | None:
        """Return what an engine makes of the ids of the chat; None where that is not known."""
        assert self._media is not None
        made = self._media.tokens.expand(cast("bytes", packed), self.names)
        if made is None:
            self._media, self.names = None, []
            self._why = "its text holds the token that stands for media"
        return made

    def in_words(self, *, truncated: bool) -> str:
        """Return how many parts are followed, and why no more; "" where there are none."""
        count = len(self.names)
        if not truncated:
            return f"all {count} followed" if count else ""
        return f"{count} followed, the next one and what is behind it not: {self._why}"


def blind(engine: Engine) -> str:
    """Return why no media are followed of such an engine's requests, in words."""
    if engine.names_media:
        return "the model's chat template, as it is known here, prints nothing for media"
    return f"{engine.title} tells nobody how it keys blocks of media"


def changes_names(parsed: Parsed) -> bool:
    """Return whether the engine makes another name of a request's fields and of the given one."""
    return is_given(parsed.mm_processor_kwargs) or is_given(parsed.media_io_kwargs)
