"""A request's prompt as the index knows prompts: hashes of its token ids, or of what stands in."""

from array import array
from collections.abc import Sequence
from typing import Final, cast

import msgspec

from kvmesh.app.prompts.beginning import MOST_READ_BYTES, beginning_of
from kvmesh.app.prompts.token_check import MAX_BODY_BYTES, TokenCheck
from kvmesh.app.prompts.tokenizer import ByteTokenizer, Tokenizer, check_ids
from kvmesh.core.blocks.byte_blocks import BYTES_A_TOKEN, byte_blocks
from kvmesh.core.blocks.hashing import NO_HASHES, TOKEN_BYTES, BlockHashes, Hashes, pack_tokens
from kvmesh.core.chat.chat import ChatInput, JsonObject
from kvmesh.core.chat.forms import chat_of_turns
from kvmesh.core.chat.inference import ChatRequest, InferenceRequest, chat_fields
from kvmesh.core.dispatch.compiled import Scanned
from kvmesh.core.prompts.parity import ParityProbe
from kvmesh.core.prompts.segment_cache import unpack_ids
from kvmesh.errors import RequestError
from kvmesh.transport.http.openai import ApiEndpoint, read_prompts, read_request
from kvmesh.transport.http.server.request import Request

Parsed = InferenceRequest | ChatRequest

_ABSENT: Final = frozenset({b"", b"null"})
_ANY_ID: Final = 1 << 31
"""Engines keep token ids in signed 32-bit numbers."""

_NO: Final = msgspec.Raw(b"false")
_CHATS: Final = frozenset({"chat", "messages", "responses"})
_TEXTS: Final = frozenset({"completions", "embeddings"})
_PROMPTS: Final = _CHATS | _TEXTS


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """What to look up and how long it is. `approximate`: no hashes of the engine's token ids;
    `estimated`: no hashes at all, and tokens by the size of the body.
    """

    hashes: Hashes
    tokens: int
    approximate: bool = False
    estimated: bool = False


class PromptReader:
    """Tokenises prompts; those of a model whose engine disagrees with our ids by what it tells.

    `block_size` tokens make a block. Token ids of `vocab_size` and more are refused; 0: those of
    the tokenizer, if it is a model's. `check` None believes our ids whatever comes.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        block_size: int,
        vocab_size: int = 0,
        check: TokenCheck | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.block_size = block_size
        known = _ANY_ID if isinstance(tokenizer, ByteTokenizer) else tokenizer.vocab_size
        self._vocab_size = vocab_size or known
        self._check = check

    @property
    def probe(self) -> ParityProbe | None:
        """Return what says which requests to compare with their engine's ids."""
        return None if self._check is None else self._check.probe

    def pack_scanned(self, scanned: Scanned) -> bytes | memoryview | None:
        """Return the packed ids of a plain chat or a text; None for what `read` has to look at."""
        prompt = scanned.prompt
        try:
            if prompt is not None:
                packed = self.tokenizer.pack(prompt, add_special_tokens=True)
            elif scanned.bare and (messages := scanned.messages):
                packed = self.tokenizer.pack_messages(messages)
            else:
                return None
        except RequestError:
            return None
        return None if isinstance(packed, str) else packed

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
        ids = endpoint.kind in _TEXTS or parsed.input_ids
        if ids and len(body) <= MOST_READ_BYTES:
            given = self._given(endpoint, parsed)
            if isinstance(given, array):
                return Prompt(NO_HASHES, len(given))
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
        text = ""
        if len(request.body) > MOST_READ_BYTES and not isinstance(parsed.messages, list):
            check = self._check
            if check is None or (parsed.model or "") not in check.probe.doubted:
                return self._of_beginning(endpoint, parsed, root)
        if endpoint.kind in _TEXTS or parsed.input_ids:
            given = self._given(endpoint, parsed)
            if isinstance(given, array):
                return self._whole(pack_tokens(given), root)
            text = given
        check, model, body = self._check, parsed.model or "", request.body
        if check is None or endpoint.kind not in _PROMPTS:
            return self._whole(self._pack(body, endpoint, parsed, text)[0], root)
        if model not in check.probe.doubted:
            prompt = self._whole(self._pack(body, endpoint, parsed, text)[0], root)
        else:
            prompt = self._doubted(check, request, endpoint, root)
        if sampled or (len(body) <= MAX_BODY_BYTES and check.probe.wants(model)):

            def ours() -> tuple[Sequence[int], bool]:
                packed, truncated = self._pack(body, endpoint, parsed, text)
                return unpack_ids(packed), truncated

            check.compare(model, request, prompt.hashes, ours)
        return prompt

    def _of_beginning(self, endpoint: ApiEndpoint, sent: Parsed, root: int) -> Prompt:
        """Return the blocks of a long prompt's beginning; the text left out counts as tokens."""
        try:
            parsed, rest = beginning_of(endpoint, cast("InferenceRequest", sent))
            messages: object = None
            if endpoint.kind == "chat" and bytes(parsed.input_ids) in _ABSENT:
                messages = msgspec.json.decode(parsed.messages, type=list[JsonObject])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self._whole(b"", root)
        read: Parsed = parsed
        if messages is not None:
            read = msgspec.structs.replace(
                parsed,
                messages=messages,
                add_generation_prompt=_NO if rest else parsed.add_generation_prompt,
                continue_final_message=_NO if rest else parsed.continue_final_message,
            )
        text = ""
        if endpoint.kind in _TEXTS or messages is None:
            given = self._given(endpoint, read)
            if isinstance(given, array):
                return self._whole(pack_tokens(given), root)
            text = given
        prompt = self._whole(self._pack(b"", endpoint, read, text)[0], root)
        if rest and text:
            tokens = prompt.tokens + rest // BYTES_A_TOKEN
            return msgspec.structs.replace(prompt, tokens=tokens)
        return prompt

    def _whole(self, packed: bytes | memoryview | str, root: int) -> Prompt:
        # Engines always compute a prompt's last token, so a block that ends with it is never
        # reused: without this cut a prompt of whole blocks would be promised one too many.
        size = self.block_size
        if isinstance(packed, str):
            cut = packed if len(packed) % size else packed[:-1]
            return Prompt(BlockHashes(cut, size, root), len(packed))
        tokens = memoryview(packed)[:-TOKEN_BYTES]
        return Prompt(BlockHashes(tokens, size, root), len(packed) // TOKEN_BYTES)

    def _doubted(
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
                return Prompt(
                    BlockHashes(ids, self.block_size, root), len(ids) // TOKEN_BYTES + rest
                )
        data = bytes(sent)
        blocks = byte_blocks(data, self.block_size, root)
        return Prompt(blocks, len(data) // BYTES_A_TOKEN, approximate=True)

    def _given(self, endpoint: ApiEndpoint, parsed: Parsed) -> "array[int] | str":
        """Return the ids that the client sent, which are the engine's own, else the text; "" for a
        chat.

        Those of a whole batch are checked: one too large ends some engines. Raises `RequestError`.
        """
        if endpoint.kind in _TEXTS:
            raw = parsed.prompt if endpoint.prompt == "prompt" else parsed.input
        elif bytes(parsed.input_ids) in _ABSENT:
            return ""
        else:
            # Some engines take a chat's ids beside its messages, and believe them.
            raw = parsed.input_ids
        prompts = read_prompts(raw)
        for prompt in prompts:
            if not isinstance(prompt, str):
                check_ids(prompt, self._vocab_size)
        first = prompts[0]
        return first if isinstance(first, str) else array("I", first)

    def _pack(
        self, body: bytes, endpoint: ApiEndpoint, parsed: Parsed, text: str
    ) -> tuple[bytes | str, bool]:
        """Return our ids of `text` or a chat, and whether they are only its beginning."""
        if endpoint.kind in _TEXTS:
            domain = parsed.cache_salt or ""
            return self.tokenizer.pack(text, add_special_tokens=True, domain=domain), False
        if endpoint.kind not in _CHATS:
            return b"", False
        try:
            messages = parsed.messages
            if isinstance(messages, list):
                chat = ChatInput.of(chat_fields(messages, parsed))
            else:
                chat = _chat_of(body, endpoint, parsed, messages)
            return self.tokenizer.pack_chat(chat, parsed.cache_salt or ""), chat.truncated
        except RequestError:
            # The engine is the judge of a chat that cannot be rendered here: it gets the request
            # by load alone and answers as it sees fit.
            return b"", False


def _chat_of(
    body: bytes, endpoint: ApiEndpoint, parsed: Parsed, messages: msgspec.Raw
) -> ChatInput:
    match endpoint.kind:
        case "messages":
            return chat_of_turns(messages, parsed.system, parsed.tools)
        case "responses":
            return chat_of_turns(parsed.input, parsed.instructions, parsed.tools)
        case _:
            return ChatInput.from_body(body)
