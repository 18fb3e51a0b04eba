"""A request's prompt as the index knows prompts: hashes of its token ids, or of what stands in."""

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Final, cast

import msgspec

from kvmesh._native import Scanned
from kvmesh.app.prompts.beginning import MOST_READ_BYTES, beginning_of
from kvmesh.app.prompts.media_reader import CHANGED, Followed, MediaReader, blind, changes_names
from kvmesh.app.prompts.prompt import Prompt, among, formed
from kvmesh.app.prompts.token_check import MAX_BODY_BYTES, TokenCheck
from kvmesh.app.prompts.tokenizer import ByteTokenizer, Tokenizer, check_ids
from kvmesh.core.blocks.hashing import (
    BYTES_A_TOKEN,
    NO_HASHES,
    TOKEN_BYTES,
    BlockHashes,
    byte_blocks,
    pack_tokens,
)
from kvmesh.core.chat.chat import ChatInput, JsonObject
from kvmesh.core.chat.inference import InferenceRequest, Parsed, chat_fields
from kvmesh.core.chat.known_chats import KnownChats
from kvmesh.core.chat.prompt_form import PLAIN, PromptForm, Unforeseen, keep_tokens
from kvmesh.core.engines.engine import Engine
from kvmesh.core.engines.registry import DEFAULT_KIND, engine_of
from kvmesh.core.prompts.media_tokens import Span, spanned_hashes
from kvmesh.core.prompts.parity import ParityProbe
from kvmesh.core.prompts.segment_cache import unpack_ids
from kvmesh.core.prompts.text_packer import MOST_MESSAGES
from kvmesh.core.prompts.tokenizer_facts import TooMuchNewTextError
from kvmesh.errors import RequestError
from kvmesh.transport.http.openai import (
    ApiEndpoint,
    is_chat_input,
    read_ids,
    read_prompts,
    read_request,
)
from kvmesh.transport.http.server.request import Request

_ABSENT: Final = frozenset({b"", b"null"})
_ANY_ID: Final = 1 << 31
"""Engines keep token ids in signed 32-bit numbers."""

_NO: Final = msgspec.Raw(b"false")
_NO_AFFIXES: Final = (b"", b"")
_TEXTS: Final = frozenset({"completions", "embeddings"})
_PROMPTS: Final = _TEXTS | {"chat", "messages", "responses"}

KNOWN_BYTES: Final = 64 << 20
"""Messages and tools that are kept decoded, for the next turns of their conversations."""


class _Packed(msgspec.Struct, frozen=True, gc=False):
    """Our `ids` of a prompt, why these are not all that the engine makes, which of them stand for
    media, and which media are followed, in words.
    """

    ids: bytes | str
    unforeseen: Unforeseen = ""
    spans: Sequence[Span] = ()
    media: str = ""


def _never() -> bool:
    return False


class PromptReader:
    """Tokenises prompts; those of a model whose engine disagrees with our ids by what it tells.

    `block_size` tokens make a block. Token ids of `vocab_size` and more are refused; 0: those of
    the tokenizer, if it is a model's. While `has_lookahead` says that the index asks for token ids,
    they are kept with their hashes. `check` None believes our ids whatever comes. `engine` is
    the kind that makes token ids of the prompts. `media` is None where only the text in front of
    the first is read.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        block_size: int,
        vocab_size: int = 0,
        check: TokenCheck | None = None,
        engine: Engine | None = None,
    ) -> None:
        self._engine = engine or engine_of(DEFAULT_KIND)
        self.tokenizer = tokenizer
        self.block_size = block_size
        self.has_lookahead: Callable[[], bool] = _never
        known = _ANY_ID if isinstance(tokenizer, ByteTokenizer) else tokenizer.vocab_size
        self._vocab_size = vocab_size or known
        self._check = check
        self._chats = KnownChats(KNOWN_BYTES)
        self.media: MediaReader | None = None
        self._blind = blind(self._engine)
        if check is not None and self._engine.names_media and tokenizer.sees_media:
            self.media = MediaReader(tokenizer, check, self._engine.words.tell_names)

    @property
    def probe(self) -> ParityProbe | None:
        """Return what says which requests to compare with their engine's ids."""
        return None if self._check is None else self._check.probe

    def pack_scanned(self, scanned: Scanned) -> bytes | str | None:
        """Return the ids of a chat or a text, packed or as code points; None for what `read` has to
        look at, and for one of which so much is new that a thread has to tokenise it.
        """
        tokenizer = self.tokenizer
        if len(scanned.body) <= tokenizer.inline_characters:
            return self._pack_scanned(scanned)
        tokenizer.bound_new_text(tokenizer.inline_characters)
        try:
            return self._pack_scanned(scanned)
        except TooMuchNewTextError:
            return None
        finally:
            tokenizer.bound_new_text(inf)

    def _pack_scanned(self, scanned: Scanned) -> bytes | str | None:
        prompt, salt = scanned.prompt, scanned.salt
        try:
            if prompt is not None:
                return self.tokenizer.pack(prompt, add_special_tokens=True, domain=salt)
            if scanned.bare and scanned.count <= MOST_MESSAGES and (messages := scanned.messages):
                return self.tokenizer.pack_messages(messages, salt)
            return self._pack_body(scanned, salt)
        except RequestError:
            return None

    def _pack_body(self, scanned: Scanned, salt: str) -> bytes | str | None:
        """Return our ids of a chat with parts, tools or template arguments; None where the engine
        may make others. Raises `RequestError`.
        """
        found = self._chats.read(scanned, salt)
        if found is None:
            return None
        parsed, chat = found
        if chat.truncated or self._engine.form(parsed, "chat") != PLAIN:
            return None
        return self.tokenizer.pack_chat(chat, salt)

    def read_unseen(
        self, request: Request, endpoint: ApiEndpoint, parsed: Parsed, root: int
    ) -> Prompt:
        """Return about how long a prompt is that nothing looks at: it is tokenized for the token
        check alone. Ids that the client sent are checked and counted.

        May run in a thread. Raises `RequestError`.
        """
        check, body = self._check, request.body
        if endpoint.kind not in _PROMPTS:
            return self.read(request, endpoint, parsed, root)
        short = len(body) <= MAX_BODY_BYTES
        if check is not None and short and check.probe.wants(parsed.model or ""):
            return self.read(request, endpoint, parsed, root, sampled=True)
        texts = not parsed.prompt_embeds and not _holds_chats(endpoint, parsed)
        ids = (endpoint.kind in _TEXTS and texts) or parsed.input_ids
        if ids and len(body) <= MOST_READ_BYTES:
            given, rest, _ = self._given(endpoint, parsed)
            if not isinstance(given, str):
                return Prompt(NO_HASHES, len(given) + rest)
        return Prompt(NO_HASHES, max(1, len(body) // BYTES_A_TOKEN), estimated=True)

    def read(
        self,
        request: Request,
        endpoint: ApiEndpoint,
        parsed: Parsed,
        root: int,
        *,
        sampled: bool = False,
    ) -> Prompt:
        """Return the prompt's blocks in the namespace of `root`; `sampled`: the token check wants
        it, and was told of it.

        May run in a thread. Raises `RequestError`.
        """
        kind, body = endpoint.kind, request.body
        if kind not in _PROMPTS:
            return self._of_other(parsed)
        form = self._engine.form(parsed, kind)
        if form.unforeseen == "embeds" or _holds_chats(endpoint, parsed):
            return self._of_size(body, endpoint, parsed, form)
        text, rest, prompts = "", 0, 1
        check, model = self._check, parsed.model or ""
        doubted = check is not None and model in check.probe.doubted
        if len(body) > MOST_READ_BYTES and not isinstance(parsed.messages, list) and not doubted:
            return formed(self._of_beginning(request, endpoint, parsed, form, root), form)
        if kind in _TEXTS or parsed.input_ids:
            given, rest, prompts = self._given(endpoint, parsed)
            if not isinstance(given, str):
                prompt = self.whole(self._kept(given, form), root)
                return formed(among(prompt, rest, prompts), form)
            text = given
        if check is None or not doubted:
            packed = self._pack(request, endpoint, parsed, text, form)
            prompt = self._prompt_of(packed, root)
        else:
            prompt = self._suspected(check, request, endpoint, root)
        if check is not None and (
            sampled or (len(body) <= MAX_BODY_BYTES and check.probe.wants(model))
        ):

            def ours() -> tuple[Sequence[int], bool]:
                packed = self._pack(request, endpoint, parsed, text, form)
                return unpack_ids(packed.ids), packed.unforeseen == "media"

            if not (form.unforeseen or form.computed):
                check.compare(model, request, prompt.hashes, ours)
        return formed(among(prompt, rest, prompts), form)

    def _of_other(self, parsed: Parsed) -> Prompt:
        """Return nothing of a prompt that is sent to an engine's own path; its ids are checked."""
        for ids in read_ids(parsed.input_ids):
            check_ids(ids, self._vocab_size)
        return Prompt(NO_HASHES, 0, unforeseen="unread")

    def _of_size(
        self, body: bytes, endpoint: ApiEndpoint, parsed: Parsed, form: PromptForm
    ) -> Prompt:
        """Return about how long a prompt is that has no token ids; any beside it are checked."""
        if bytes(parsed.prompt) not in _ABSENT:
            self._given(endpoint, parsed)
        tokens = max(1, len(body) // BYTES_A_TOKEN)
        return Prompt(NO_HASHES, tokens, estimated=True, unforeseen=form.unforeseen or "unread")

    def _of_beginning(
        self,
        request: Request,
        endpoint: ApiEndpoint,
        sent: Parsed,
        form: PromptForm,
        root: int,
    ) -> Prompt:
        """Return the blocks of a long prompt's beginning; the text left out counts as tokens."""
        try:
            parsed, rest = beginning_of(endpoint, cast("InferenceRequest", sent))
            messages: object = None
            if endpoint.kind == "chat" and bytes(parsed.input_ids) in _ABSENT:
                messages = msgspec.json.decode(parsed.messages, type=list[JsonObject])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self.whole(b"", root, "beginning")
        read: Parsed = parsed
        if messages is not None:
            read = msgspec.structs.replace(
                parsed,
                messages=messages,
                add_generation_prompt=_NO if rest else parsed.add_generation_prompt,
                continue_final_message=_NO if rest else parsed.continue_final_message,
            )
        text, others, prompts = "", 0, 1
        if endpoint.kind in _TEXTS or messages is None:
            given, others, prompts = self._given(endpoint, read)
            if not isinstance(given, str):
                return among(self.whole(self._kept(given, form), root), others, prompts)
            text = given
        form = PLAIN if rest else form
        packed = self._pack(request, endpoint, read, text, form)
        if rest:
            packed = msgspec.structs.replace(packed, unforeseen="beginning")
        prompt = self._prompt_of(packed, root)
        return among(prompt, others + (rest // BYTES_A_TOKEN if text else 0), prompts)

    def _kept(self, given: "array[int]", form: PromptForm) -> bytes:
        """Return what an engine keeps of ids that the client sent, packed."""
        return cast("bytes", keep_tokens(bytes(pack_tokens(given)), _NO_AFFIXES, form))

    def _prompt_of(self, packed: _Packed, root: int) -> Prompt:
        prompt = self.whole(packed.ids, root, packed.unforeseen, packed.spans)
        return msgspec.structs.replace(prompt, media=packed.media) if packed.media else prompt

    def whole(
        self,
        packed: bytes | memoryview | str,
        root: int,
        unforeseen: Unforeseen = "",
        spans: Sequence[Span] = (),
    ) -> Prompt:
        """Return the prompt of token ids, in the namespace of `root`; `spans` stand for media."""
        # Engines always compute a prompt's last token, so a block that ends with it is never
        # reused: without this cut a prompt of whole blocks would be promised one too many.
        size = self.block_size
        ahead = self.has_lookahead()
        if isinstance(packed, str):
            cut = packed if len(packed) % size else packed[:-1]
            ids = packed.encode("utf-32-le", "surrogatepass") if ahead else None
            return Prompt(BlockHashes(cut, size, root, ids), len(packed), unforeseen=unforeseen)
        tokens = memoryview(packed)[:-TOKEN_BYTES]
        make = partial(spanned_hashes, spans) if spans else BlockHashes
        hashes = make(tokens, size, root, packed if ahead else None)
        return Prompt(hashes, len(packed) // TOKEN_BYTES, unforeseen=unforeseen)

    def _suspected(
        self,
        check: TokenCheck,
        request: Request,
        endpoint: ApiEndpoint,
        root: int,
    ) -> Prompt:
        """Return the beginning that the engine told if it is most of it, else blocks of bytes."""
        parsed = read_request(request, endpoint)
        field = endpoint.prompt or "messages"
        sent = {"messages": parsed.messages, "prompt": parsed.prompt, "input": parsed.input}[field]
        if endpoint.kind == "chat":
            known_bytes, ids = check.find_prefix(parsed)
            check.learn(parsed, request)
            if 2 * known_bytes > len(sent):
                rest = (len(sent) - known_bytes) // BYTES_A_TOKEN
                hashes = BlockHashes(ids, self.block_size, root)
                return Prompt(hashes, len(ids) // TOKEN_BYTES + rest, unforeseen="doubted")
        data = bytes(sent)
        blocks = byte_blocks(data, self.block_size, root)
        tokens = len(data) // BYTES_A_TOKEN
        return Prompt(blocks, tokens, approximate=True, unforeseen="doubted")

    def _given(self, endpoint: ApiEndpoint, parsed: Parsed) -> tuple["array[int] | str", int, int]:
        """Return the first prompt: the ids that the client sent, which are the engine's own, else
        the text ("" for a chat); about how many tokens the others have; how many there are in all.

        Those of a whole batch are checked: one too large ends some engines. Raises `RequestError`.
        """
        if endpoint.kind in _TEXTS:
            raw = parsed.prompt if endpoint.prompt == "prompt" else parsed.input
        elif bytes(parsed.input_ids) in _ABSENT:
            return "", 0, 1
        else:
            # Some engines take a chat's ids beside its messages, and believe them.
            raw = parsed.input_ids
        prompts = read_prompts(raw)
        for prompt in prompts:
            if not isinstance(prompt, str):
                check_ids(prompt, self._vocab_size)
        first, *others = prompts
        rest = sum(len(o) // (BYTES_A_TOKEN if isinstance(o, str) else 1) for o in others)
        return (first if isinstance(first, str) else array("I", first)), rest, len(prompts)

    def _pack(
        self,
        request: Request,
        endpoint: ApiEndpoint,
        parsed: Parsed,
        text: str,
        form: PromptForm,
    ) -> _Packed:
        """Return our ids of `text` or a chat."""
        kind, domain, tokenizer = endpoint.kind, parsed.cache_salt or "", self.tokenizer
        special = kind in _TEXTS if form.special_tokens is None else form.special_tokens
        affixes = tokenizer.affixes if special else _NO_AFFIXES
        if kind in _TEXTS:
            packed = tokenizer.pack(text, add_special_tokens=special, domain=domain)
            return _Packed(keep_tokens(packed, affixes, form))
        media, why = self.media, self._blind
        if media is not None and (form != PLAIN or special or changes_names(parsed)):
            media, why = None, CHANGED
        followed = Followed(media, kind, why)
        try:
            chat = self._chat_of(request, kind, parsed, followed)
            packed = tokenizer.pack_chat(chat, domain)
            if followed.names:
                made = followed.expand(packed)
                if made is not None:
                    words = followed.in_words(truncated=chat.truncated)
                    return _Packed(made[0], "media" if chat.truncated else "", made[1], words)
                chat = self._chat_of(request, kind, parsed, followed)
                packed = tokenizer.pack_chat(chat, domain)
        except RequestError:
            # The engine is the judge of a chat that cannot be rendered here: it gets the request
            # by load alone and answers as it sees fit.
            return _Packed(b"", "rendering")
        if special and isinstance(packed, bytes):
            packed = affixes[0] + packed + affixes[1]
        if chat.truncated:
            return _Packed(packed, "media", (), followed.in_words(truncated=True))
        return _Packed(keep_tokens(packed, affixes, form))

    def _chat_of(
        self, request: Request, kind: str, parsed: Parsed, followed: Followed
    ) -> ChatInput:
        """Return the chat of a request. Raises `RequestError`."""
        messages = parsed.messages
        if isinstance(messages, list):
            return ChatInput.of(chat_fields(messages, parsed), followed.keep)
        if kind == "chat":
            return ChatInput.from_body(request.body)
        return self._engine.turns(parsed, kind, followed.keep)


def _holds_chats(endpoint: ApiEndpoint, parsed: Parsed) -> bool:
    """Return whether chats are to be embedded."""
    return endpoint.kind == "embeddings" and is_chat_input(parsed.input)
