"""Images, sounds and videos of chats: named in their bodies, and read as their engine's tokens."""

from functools import partial
from typing import Final, cast

import msgspec

from kvmesh.app.prompts.token_check import TokenCheck
from kvmesh.app.prompts.tokenizer import Tokenizer
from kvmesh.core.chat.chat import ChatBody, ChatInput, JsonObject
from kvmesh.core.chat.inference import Parsed, decode_request, read_chat
from kvmesh.core.chat.media import MediaPart, media_part, media_parts, named_body
from kvmesh.core.chat.prompt_form import Unforeseen, is_given
from kvmesh.core.prompts.media_tokens import MediaTokens, Span
from kvmesh.core.prompts.segment_cache import unpack_ids
from kvmesh.errors import RequestError
from kvmesh.transport.http.server.request import Request

MOST_PART_BYTES: Final = 32 << 20
"""Of a part that its engine is asked about: it gets it a second time."""


class MediaReader:
    """Reads media for an engine that takes names for them and tells tokens (`Engine.names_media`).

    `tokenizer` prints something where they stand (`sees_media`), `check` asks engines.
    """

    def __init__(self, tokenizer: Tokenizer, check: TokenCheck) -> None:
        self._tokenizer = tokenizer
        self._check = check
        self.tokens = MediaTokens()

    @staticmethod
    def name(parsed: Parsed, body: bytes) -> tuple[Parsed, bytes]:
        """Return a chat with its media named, and its body likewise; the same where there are none.

        May run in a thread.
        """
        messages = parsed.messages
        if isinstance(messages, list) and not media_parts(messages):
            return parsed, body
        named = named_body(body, parsed.cache_salt or "")
        if named is None:
            return parsed, body
        again: Parsed | None = read_chat(named) if isinstance(messages, list) else None
        return again or decode_request(named), named

    def read(
        self, said: ChatBody, parsed: Parsed, request: Request
    ) -> tuple[bytes, Unforeseen, list[Span]] | None:
        """Return the ids (u32s) of a chat up to the first part of media whose tokens are not known,
        why these are not all, and which of them stand for media; None where not even those of the
        first part are known. Engines are asked for them, for the next turn.

        May run in a thread. Raises `RequestError`.
        """
        if is_given(parsed.mm_processor_kwargs) or is_given(parsed.media_io_kwargs):
            return None  # the engine makes another name of these and of the one it was given
        names: list[str] = []

        def keep(part: JsonObject) -> JsonObject | None:
            found = media_part(part)
            if found is None or not self.tokens.knows(found.name):
                return None
            names.append(found.name)
            return {"type": found.kind}

        for part in media_parts(said.messages):
            self._learn(part, parsed.model or "", request)
        chat = ChatInput.of(said, keep)
        if not names:
            return None
        packed = self._tokenizer.pack_chat(chat, parsed.cache_salt or "")
        made = self.tokens.expand(cast("bytes", packed), names)
        return None if made is None else (made[0], "media" if chat.truncated else "", made[1])

    def _learn(self, part: JsonObject, model: str, request: Request) -> None:
        found = media_part(part)
        if found is None or not self.tokens.wants(found.name):
            return
        message = msgspec.json.encode({"role": "user", "content": [part]})
        if len(message) > MOST_PART_BYTES:
            self.tokens.learn(found.name, (), ())
            return
        self._check.tokenize(model, message, request, partial(self._take, found))

    def _take(self, found: MediaPart, theirs: list[int] | None) -> None:
        chat = ChatInput(
            [{"role": "user", "content": [{"type": found.kind}]}], add_generation_prompt=False
        )
        try:
            ours = unpack_ids(self._tokenizer.pack_chat(chat))
        except RequestError:  # its template wants more than one part: nothing can be learned
            theirs, ours = [], unpack_ids(b"")
        self.tokens.learn(found.name, ours, theirs)
