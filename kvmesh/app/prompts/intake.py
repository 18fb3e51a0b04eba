"""From an HTTP request to what the scheduler decides on: its tokens, hashes and wishes."""

import itertools
from collections.abc import Container

from kvmesh.app.prompts.prompt_reader import PromptReader
from kvmesh.app.prompts.request_wishes import WishOptions, WishReader
from kvmesh.core.blocks.events import HASH_BYTES
from kvmesh.core.blocks.hashing import TOKEN_BYTES, BlockHashes, namespace_root
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.model_policy import ModelPolicies
from kvmesh.errors import RequestError
from kvmesh.transport.http.openai import (
    ApiEndpoint,
    InferenceRequest,
    parse_model,
    read_request,
)
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.request import Request


class Intake:
    """Reads requests for one router.

    A request id that the client chose may come twice; bookings need one that never does, so
    `router_id` and a number are put behind it. `wishes` reads what requests ask of the router,
    `secret` keys the namespaces' roots (`hashing.namespace_root`). A model among `adapters` is a
    LoRA adapter, whose cached blocks are its own.
    """

    def __init__(
        self,
        prompts: PromptReader,
        router_id: str,
        *,
        wishes: WishReader | None = None,
        secret: bytes = b"",
        adapters: Container[str] = (),
    ) -> None:
        self._prompts = prompts
        self._adapters = adapters
        self._wishes = wishes or WishReader(WishOptions(), ModelPolicies())
        self._router_id = router_id
        self._block_size = prompts.block_size
        self._secret = secret
        self._numbers = itertools.count(1)

    def is_long(self, request: Request) -> bool:
        """Return whether tokenising may hold the event loop too long."""
        return self._prompts.tokenizer.should_offload(len(request.body))

    def parse(self, exchange: Exchange, endpoint: ApiEndpoint) -> InferenceRequest:
        """Return the few fields routing reads. Raises `RequestError`."""
        if endpoint.kind in {"models", "passthrough"}:
            return InferenceRequest(model=parse_model(exchange.request.body) or None)
        return read_request(exchange.request, endpoint)

    def read(
        self, exchange: Exchange, endpoint: ApiEndpoint, parsed: InferenceRequest
    ) -> RouteRequest:
        """Return what to route: tokenised, hashed as far as asked later, with its overrides.

        May run in a thread: touches nothing but its arguments and the tokenizer.
        Raises `RequestError`.
        """
        request = exchange.request
        lora = self._lora(parsed)
        root = namespace_root(cache_salt=parsed.cache_salt or "", lora=lora, secret=self._secret)
        prompt = self._prompts.read(request, endpoint, parsed, root)
        wishes = self._wishes.read(request, parsed)
        output = wishes.output_tokens
        if output is None:
            output = parsed.output_limit or 0
        visible = exchange.request_id.decode("latin-1")
        sent = request.header(b"x-request-id") is not None
        return RouteRequest(
            request_id=f"{visible}#{self._router_id}-{next(self._numbers)}" if sent else visible,
            hashes=prompt.hashes,
            prompt_tokens=prompt.tokens,
            approximate=prompt.approximate,
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
            session=wishes.session,
        )

    def _lora(self, parsed: InferenceRequest) -> str:
        """Return the adapter's name: the field `lora_path`, or the model itself."""
        lora = parsed.lora_path
        if isinstance(lora, list):
            lora = lora[0] if lora else None
        model = parsed.model or ""
        return lora or (model if model in self._adapters else "")

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
            root = namespace_root(secret=self._secret)
            # As for JSON: the last token is always computed, so its block is never reused.
            tokens = memoryview(request.body)[:-TOKEN_BYTES]
            hashes = BlockHashes(tokens, self._block_size, root)
            count = len(request.body) // TOKEN_BYTES
        else:
            hashes = BlockHashes.unpack(request.body, self._block_size)
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
            session=wishes.session,
        )
