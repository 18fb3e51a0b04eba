"""From an HTTP request to what the scheduler decides on: its tokens, hashes and wishes."""

import itertools
from array import array
from typing import Final

import msgspec

from kvmesh.app.request_wishes import WishOptions, WishReader
from kvmesh.core.chat import ChatInput, JsonObject
from kvmesh.core.decision import RouteRequest
from kvmesh.core.events import HASH_BYTES
from kvmesh.core.hashing import TOKEN_BYTES, BlockHashes, namespace_root, unpack_hashes
from kvmesh.core.model_policy import ModelPolicies
from kvmesh.errors import RequestError
from kvmesh.tokenizer import ByteTokenizer, Tokenizer, check_ids
from kvmesh.transport.http.exchange import Exchange
from kvmesh.transport.http.openai import (
    Endpoint,
    InferenceRequest,
    parse_request,
    read_prompts,
)
from kvmesh.transport.http.request import Request

_NO_TOKENS: Final = array("I")
_ANY_ID: Final = 1 << 31
"""Engines keep token ids in signed 32-bit numbers."""


class Intake:
    """Reads requests for one router. `block_size` tokens make a block.

    A request id that the client chose may come twice; bookings need one that never does, so
    `router_id` and a number are put behind it. Token ids of `vocab_size` and more are refused;
    0: those of the tokenizer, if it is a model's. `wishes` reads what requests ask of the router.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        block_size: int,
        router_id: str,
        vocab_size: int = 0,
        *,
        wishes: WishReader | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        known = _ANY_ID if isinstance(tokenizer, ByteTokenizer) else tokenizer.vocab_size
        self._vocab_size = vocab_size or known
        self._wishes = wishes or WishReader(WishOptions(), ModelPolicies())
        self._router_id = router_id
        self._block_size = block_size
        self._numbers = itertools.count(1)

    def is_long(self, request: Request) -> bool:
        """Return whether tokenising may hold the event loop too long."""
        return self.tokenizer.should_offload(len(request.body))

    def parse(self, exchange: Exchange, endpoint: Endpoint) -> InferenceRequest:
        """Return the few fields routing reads. Raises `RequestError`."""
        if endpoint.kind in {"models", "passthrough"}:
            return InferenceRequest()
        return parse_request(exchange.request.body, endpoint)

    def read(
        self, exchange: Exchange, endpoint: Endpoint, parsed: InferenceRequest
    ) -> RouteRequest:
        """Return what to route: tokenised, hashed as far as asked later, with its overrides.

        May run in a thread: touches nothing but its arguments and the tokenizer.
        Raises `RequestError`.
        """
        request = exchange.request
        tokens = self._tokens(request, endpoint, parsed)
        root = namespace_root(cache_salt=parsed.cache_salt or "", lora=_lora(parsed))
        wishes = self._wishes.read(request, parsed)
        output = wishes.output_tokens
        if output is None:
            output = parsed.output_limit or 0
        visible = exchange.request_id.decode("latin-1")
        sent = request.header(b"x-request-id") is not None
        return RouteRequest(
            request_id=f"{visible}#{self._router_id}-{next(self._numbers)}" if sent else visible,
            # Engines always compute a prompt's last token, so a block that ends with it is never
            # reused: without this cut a prompt of whole blocks would be promised one too many.
            hashes=BlockHashes(memoryview(tokens)[:-1], self._block_size, root),
            prompt_tokens=len(tokens),
            expected_output_tokens=output * parsed.choices,
            model=parsed.model or "",
            mode=wishes.mode,
            cost=wishes.cost,
            temperature=wishes.temperature,
            overlap_score_weight=wishes.overlap_score_weight,
            allowed_workers=wishes.allowed_workers,
            pinned_worker=wishes.pinned_worker,
            priority=wishes.priority,
            streams=bool(parsed.stream),
            tenant=wishes.tenant,
            labels=wishes.labels,
            tolerations=wishes.tolerations,
        )

    def read_binary(self, exchange: Exchange) -> RouteRequest:
        """Return what to route of a body of packed u32 token ids or u64 sequence hashes.

        Little-endian; header `x-kvmesh-body: hashes` tells hashes from tokens. JSON of the same
        costs more than the index itself. Raises `RequestError`.
        """
        request = exchange.request
        kind = (request.header(b"x-kvmesh-body") or b"tokens").decode("latin-1").strip()
        width = {"tokens": TOKEN_BYTES, "hashes": HASH_BYTES}.get(kind)
        if width is None:
            raise RequestError(f"header x-kvmesh-body is {kind!r}: use tokens or hashes")
        if len(request.body) % width:
            raise RequestError(
                f"body of {len(request.body)} bytes is not whole {width}-byte {kind}"
            )
        if kind == "tokens":
            hashes = BlockHashes(request.body, self._block_size)
            count = len(request.body) // TOKEN_BYTES
        else:
            hashes = BlockHashes.of(unpack_hashes(request.body), self._block_size)
            count = len(hashes) * self._block_size
        wishes = self._wishes.read(request)
        return RouteRequest(
            request_id=exchange.request_id.decode("latin-1"),
            hashes=hashes,
            prompt_tokens=count,
            mode=wishes.mode,
            cost=wishes.cost,
            temperature=wishes.temperature,
            overlap_score_weight=wishes.overlap_score_weight,
            allowed_workers=wishes.allowed_workers,
            pinned_worker=wishes.pinned_worker,
            labels=wishes.labels,
            tolerations=wishes.tolerations,
        )

    def _tokens(
        self, request: Request, endpoint: Endpoint, parsed: InferenceRequest
    ) -> "array[int]":
        tokenizer = self.tokenizer
        match endpoint.kind:
            case "chat" | "messages" | "responses":
                if bytes(parsed.input_ids) not in {b"", b"null"}:
                    # SGLang takes a chat's ids beside its messages, and believes them.
                    return self._first_ids(parsed.input_ids)
                try:
                    return tokenizer.encode_chat(_chat_of(request, endpoint, parsed))
                except RequestError:
                    # The engine is the judge of a chat that cannot be rendered here: it gets the
                    # request by load alone and answers as it sees fit.
                    return _NO_TOKENS
            case "completions" | "embeddings":
                return self._first_ids(
                    parsed.prompt if endpoint.prompt == "prompt" else parsed.input
                )
            case _:
                return _NO_TOKENS

    def _first_ids(self, raw: msgspec.Raw) -> "array[int]":
        """Return the first prompt's ids; those of all are checked, for one too large ends SGLang.

        Raises `RequestError`.
        """
        prompts = read_prompts(raw)
        for prompt in prompts:
            if not isinstance(prompt, str):
                check_ids(prompt, self._vocab_size)
        first = prompts[0]
        if isinstance(first, str):
            return self.tokenizer.encode(first, add_special_tokens=True)
        return array("I", first)


def _chat_of(request: Request, endpoint: Endpoint, parsed: InferenceRequest) -> ChatInput:
    match endpoint.kind:
        case "messages":
            return _chat(parsed.messages, parsed.system, parsed.tools)
        case "responses":
            return _chat(parsed.input, parsed.instructions, parsed.tools)
        case _:
            return ChatInput.from_body(request.body)


def _chat(messages: msgspec.Raw, system: msgspec.Raw, tools: msgspec.Raw) -> ChatInput:
    """Return Anthropic's or the responses API's prompt as a chat: system text first.

    An engine may render these a little differently; then only the common prefix matches.
    """
    try:
        turns = msgspec.json.decode(messages, type=str | list[JsonObject])
    except msgspec.MsgspecError as error:
        raise RequestError(f"prompt: {error}") from error
    listed: list[JsonObject] = (
        [{"role": "user", "content": turns}] if isinstance(turns, str) else (turns)
    )
    if bytes(system) not in {b"", b"null"}:
        listed = [{"role": "system", "content": msgspec.json.decode(system)}, *listed]
    body: JsonObject = {"messages": listed}
    if bytes(tools) not in {b"", b"null"}:
        body["tools"] = msgspec.json.decode(tools)
    return ChatInput.from_body(body)


def _lora(parsed: InferenceRequest) -> str:
    lora = parsed.lora_path
    if isinstance(lora, list):
        return (lora[0] if lora else None) or ""
    return lora or ""
