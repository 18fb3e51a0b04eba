"""From an HTTP request to what the router decides on: its tokens, hashes and wishes, one value."""

import itertools
import time
from collections.abc import Callable, Container
from functools import partial
from typing import Final

import msgspec

from kvmesh._native import Histogram, scan
from kvmesh.app.prompts.beginning import MOST_READ_BYTES
from kvmesh.app.prompts.isolation import Isolation
from kvmesh.app.prompts.prompt_reader import PromptReader
from kvmesh.app.prompts.reading_parts import is_short, stored_answer, turn_of, within
from kvmesh.app.prompts.reading_threads import INLINE_ITEMS, ReadingThreads
from kvmesh.app.prompts.request_wishes import RequestWishes, WishOptions, WishReader
from kvmesh.app.prompts.tokenizer import ByteTokenizer
from kvmesh.bounds import MAX_TOKENS, shown
from kvmesh.core.blocks.events import HASH_BYTES
from kvmesh.core.blocks.hashing import TOKEN_BYTES, BlockHashes, namespace_root
from kvmesh.core.chat.inference import InferenceRequest, Parsed, extra_key_of, read_chat
from kvmesh.core.chat.media import may_hold_media
from kvmesh.core.dispatch.placing import ScannedPrompt
from kvmesh.core.insight.histogram import MICROSECONDS
from kvmesh.core.routing.decision import RouteRequest, RouterMode
from kvmesh.core.routing.model_policy import ModelPolicies
from kvmesh.errors import KvMeshError, RequestError
from kvmesh.transport.http.openai import (
    ApiEndpoint,
    find_endpoint,
    parse_named,
    prompt_endpoint,
    read_request,
)
from kvmesh.transport.http.server.incoming import E, Incoming
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.wire.problem import Problem

Then = Callable[[E, RouteRequest], None]
_NO_BODY: Final = InferenceRequest()

MOST_PACKED: Final = 1 << 20
"""Token ids or hashes of a prompt sent packed: they are read on the event loop."""


class Readable(msgspec.Struct, frozen=True, gc=False):
    """A prompt, and what its request wishes. Where tenants are kept apart the body is salted."""

    asked: ScannedPrompt
    wishes: RequestWishes


class Reader:
    """Reads requests for one router: parses, tokenises, hashes, takes their wishes.

    A request id that the client chose may come twice; bookings need one that never does, so
    `router_id` and a number are put behind it. `wishes` reads what requests ask of the router,
    `secret` keys the namespaces' roots (`hashing.namespace_root`). A model among `adapters` is a
    LoRA adapter, whose cached blocks are its own. `isolation` keeps tenants apart; None: nothing
    does. `seconds` counts how long reading takes. `uses_caches` tells whether anything looks at the
    prompt of a request with this mode (None: the router's own); where nothing does, it is not
    tokenized. None: always. `keeps_secret`: no client can know `secret`, so none can hash with it.
    """

    def __init__(
        self,
        prompts: PromptReader,
        router_id: str,
        *,
        wishes: WishReader | None = None,
        secret: bytes = b"",
        adapters: Container[str] = (),
        seconds: Histogram | None = None,
    ) -> None:
        self.isolation: Isolation | None = None
        self.keeps_secret = False
        self.root = namespace_root(secret=secret)
        self._probe = prompts.probe
        self._bytes_alone = isinstance(prompts.tokenizer, ByteTokenizer)
        self.uses_caches: Callable[[RouterMode | None], bool] | None = None
        self.names_turns: Callable[[], bool] = bool
        self._prompts = prompts
        self._adapters = adapters
        self._wishes = wishes or WishReader(WishOptions(), ModelPolicies())
        self._router_id = router_id
        self._secret = secret
        self._numbers = itertools.count(1)
        self._seconds = seconds or Histogram(MICROSECONDS)
        self._threads = ReadingThreads()

    def scan(self, asked: Request, *, chat: bool, uses_caches: bool) -> Readable | None:
        """Return what routing reads of a short chat or completion; None for any other, and for what
        may be wrong. `uses_caches`: token ids are needed.

        Raises `RequestError` naming a header.
        """
        body: bytes | None = asked.body
        names_media = self._prompts.media is not None and not uses_caches
        if not is_short(asked) or (names_media and may_hold_media(asked.body)):
            return None
        if self.isolation is not None:
            body = self._salted_body(asked, self.isolation)
        scanned = None if body is None else scan(body, chat)
        if scanned is None:
            return None
        wishes = self._wishes.read_scanned(asked, scanned)
        if wishes is None:
            return None
        if (probe := self._probe) is not None and not probe.passes(scanned.model):
            return None
        if asked.allowed is not None:
            allowed = within(wishes.allowed_workers, asked.allowed)
            wishes = msgspec.structs.replace(wishes, allowed_workers=allowed, chooses=True)
        packed: bytes | None = None
        if (uses_caches or wishes.mode == "kv") and not self._bytes_alone:
            ids = self._prompts.pack_scanned(scanned)
            if not isinstance(ids, bytes):
                return None
            packed = ids
        root, salt = self.root, scanned.salt
        adapter = scanned.model if scanned.model in self._adapters else ""
        if salt or adapter:
            root = namespace_root(cache_salt=salt, lora=adapter, secret=self._secret)
        return Readable(ScannedPrompt(scanned, packed, root, adapter), wishes)

    def request_of(self, read: Readable, name: str) -> RouteRequest | None:
        """Return what to route of a body that was scanned: what `read` would make of it; None for
        one that `read` has to look at after all. `name` is that of its bookings.
        """
        asked, wishes = read.asked, read.wishes
        scanned, packed = asked.scanned, asked.packed
        if self.uses_caches is not None and not self.uses_caches(wishes.mode):
            return None
        ids: bytes | memoryview | str | None = packed
        if ids is None:
            ids = self._prompts.pack_scanned(scanned)
        if ids is None:
            return None
        prompt = self._prompts.whole(ids, asked.root)
        output = scanned.limit if wishes.output_tokens is None else wishes.output_tokens
        turn = None
        if wishes.names is not None and self.names_turns():
            turn = turn_of(wishes.names, name, prompt.tokens, wishes)
        return msgspec.structs.replace(
            wishes.request(scanned.model),
            request_id=name,
            hashes=prompt.hashes,
            prompt_tokens=prompt.tokens,
            expected_output_tokens=min(output, MAX_TOKENS),
            streams=scanned.streams,
            adapter=asked.adapter,
            turn=turn,
        )

    @staticmethod
    def _salted_body(asked: Request, isolation: Isolation) -> bytes | None:
        """Return the body as its engine is to get it; None where `read` says what is wrong."""
        try:
            return isolation.salted(asked)[1]
        except RequestError:
            return None

    def own_name(self, request_id: bytes) -> str:
        """Return a name of the bookings of a request whose client named it: it may come twice."""
        return f"{request_id.decode('latin-1')}#{self._router_id}-{next(self._numbers)}"

    def read(self, exchange: E, endpoint: ApiEndpoint | None, then: Then[E]) -> None:
        """Call `then` with what was read: at once, or from a later turn. Raises `RequestError`.

        A long body is parsed and tokenised in a thread, so that other streams go on meanwhile.
        `endpoint` None: that whose prompt the body holds, to be explained, so it is read whole.
        """
        began = time.perf_counter()
        asked = exchange.request
        if self._is_long(asked):
            exchange.scope.start(self._read_in_thread(exchange, endpoint, then))
            return
        found, parsed, body = self._parse(asked, endpoint)
        if body is not asked.body:
            asked.replace_body(body)
        request = self.make(exchange, found, parsed, whole=endpoint is None)
        self._seconds.observe(time.perf_counter() - began)
        then(exchange, request)

    async def _read_in_thread(
        self, exchange: E, endpoint: ApiEndpoint | None, then: Then[E]
    ) -> None:
        began, asked = time.perf_counter(), exchange.request
        try:
            parse = partial(self._parse, asked, endpoint)
            found, parsed, body = await self._threads.run(asked, parse)
            if body is not asked.body:
                asked.replace_body(body)
            make = partial(self.make, exchange, found, parsed, whole=endpoint is None)
            request = await self._threads.run(asked, make)
            self._seconds.observe(time.perf_counter() - began)
            then(exchange, request)
        except KvMeshError as error:
            exchange.fail(Problem.from_error(error))

    def _parse(
        self, asked: Request, endpoint: ApiEndpoint | None
    ) -> tuple[ApiEndpoint, Parsed, bytes]:
        """Return a request parsed, and the body for its engine. Raises `RequestError`."""
        endpoint = endpoint or prompt_endpoint(asked.body)
        found: Parsed | None = None
        if endpoint.kind == "chat" and len(asked.body) <= MOST_READ_BYTES:
            found = read_chat(asked.body)
        elif endpoint.prompt is None:
            model, ids = parse_named(asked)
            found = InferenceRequest(model=model or None, input_ids=ids)
        parsed = found or read_request(asked, endpoint)
        apart, media, body = self.isolation, self._prompts.media, asked.body
        if apart is not None and endpoint.prompt is not None:
            parsed, body = apart.apply(asked, parsed)
        if media is not None:
            parsed, body = media.name(endpoint.kind, parsed, asked, body)
        return endpoint, parsed, body

    def read_again(
        self, exchange: E, ids: bytes | None, then: Callable[[RouteRequest], None]
    ) -> None:
        """Call `then` with what is to be routed of a request, whose body is as it was sent, when
        its stream goes on: `ids` are prompt and answer so far, None: the same is asked again.

        Raises `RequestError`.
        """
        asked = exchange.request
        endpoint = find_endpoint(asked.method, asked.path, passthrough=True)

        def make() -> RouteRequest:
            return self.make(exchange, endpoint, read_request(asked, endpoint), ids=ids)

        if not self._is_long(asked):
            then(make())
            return

        async def read() -> None:
            try:
                then(await self._threads.run(asked, make))
            except KvMeshError as error:
                exchange.fail(Problem.from_error(error))

        exchange.scope.start(read())

    def _is_long(self, asked: Request) -> bool:
        """Return whether a body is read in a thread."""
        longest = self._prompts.tokenizer.inline_characters
        return len(asked.body) > longest or asked.items > INLINE_ITEMS

    def make(
        self,
        exchange: Incoming,
        endpoint: ApiEndpoint,
        parsed: Parsed,
        *,
        whole: bool = False,
        ids: bytes | None = None,
    ) -> RouteRequest:
        """Return what to route: tokenised, hashed as far as asked later, with its wishes. `whole`
        tokenises a prompt that nothing looks at, too; `ids` are the prompt in place of the body's.

        May run in a thread: touches nothing but its arguments and the tokenizer.
        Raises `RequestError`.
        """
        request, model = exchange.request, parsed.model or ""
        root, extra_key = self.root, extra_key_of(parsed) if parsed.extra_key else ""
        if parsed.cache_salt or extra_key or parsed.lora_path or model in self._adapters:
            root = self._root(parsed, model, extra_key)
        wishes = self._wishes.read(request, parsed)
        unseen = self.uses_caches is not None and not whole and not self.uses_caches(wishes.mode)
        try:
            if ids is None:
                read = self._prompts.read_unseen if unseen else self._prompts.read
                prompt = read(request, endpoint, parsed, root)
            else:
                prompt = self._prompts.whole(ids, root)
        except RecursionError:
            raise RequestError("the body is nested too deeply to be read: flatten it") from None
        output = parsed.output_limit or 0 if wishes.output_tokens is None else wishes.output_tokens
        choices = 1 if parsed.n is None else parsed.choices
        request_id = exchange.request_id
        name = self.own_name(request_id) if wishes.named else request_id.decode("latin-1")
        turn = None
        if wishes.names is not None and self.names_turns():
            turn = turn_of(wishes.names, name, prompt.tokens, wishes)
        return msgspec.structs.replace(
            wishes.request(model),
            request_id=name,
            hashes=prompt.hashes,
            prompt_tokens=prompt.tokens,
            approximate=prompt.approximate or bool(extra_key),
            estimated=prompt.estimated,
            unforeseen=prompt.unforeseen or ("extra_key" if extra_key and not unseen else ""),
            media=prompt.media,
            stored=stored_answer(parsed) if endpoint.kind == "responses" else "",
            expected_output_tokens=min(output * choices, MAX_TOKENS),
            allowed_workers=within(wishes.allowed_workers, request.allowed),
            streams=bool(parsed.stream),
            choices=choices,
            adapter=self._adapter(parsed, model),
            turn=turn,
        )

    def _adapter(self, parsed: Parsed, model: str) -> str:
        """Return the request's adapter.

        Only one that a worker serves: what clients make up is not remembered in its place.
        """
        named = _first_adapter(parsed) or model
        return named if named in self._adapters else ""

    def follow(self, has_lookahead: Callable[[], bool]) -> None:
        """Keep token ids with hashes while `has_lookahead` says that they are asked for."""
        self._prompts.has_lookahead = has_lookahead

    def resize(self, block_size: int) -> None:
        """Hash by blocks of another size from now on."""
        self._prompts.block_size = block_size

    def read_binary(self, exchange: Incoming) -> RouteRequest:
        """Return what to route of a body of packed u32 token ids or u64 sequence hashes.

        Little-endian; header `x-kvmesh-body: hashes` tells hashes from tokens. JSON of the same
        costs more than the index itself. Raises `RequestError`.
        """
        request, block_size = exchange.request, self._prompts.block_size
        salt = ""
        if self.isolation is not None:
            salt = self.isolation.of_tenant(request, _NO_BODY)
        kind = (request.header(b"x-kvmesh-body") or b"tokens").decode("latin-1").strip()
        width = {"tokens": TOKEN_BYTES, "hashes": HASH_BYTES}.get(kind)
        if width is None:
            raise RequestError(f"header x-kvmesh-body is {shown(kind)}: use tokens or hashes")
        if len(request.body) > MOST_PACKED * width:
            raise RequestError(
                f"body has {len(request.body) // width} {kind}: ask about {MOST_PACKED} at most",
                status=413,
            )
        if len(request.body) % width:
            raise RequestError(
                f"body of {len(request.body)} bytes is not whole {width}-byte {kind}"
            )
        if kind == "tokens":
            root = namespace_root(cache_salt=salt, secret=self._secret)
            # As for JSON: the last token is always computed, so its block is never reused.
            tokens = memoryview(request.body)[:-TOKEN_BYTES]
            ids = request.body if self._prompts.has_lookahead() else None
            hashes = BlockHashes(tokens, block_size, root, ids)
            count = len(request.body) // TOKEN_BYTES
        elif salt:
            raise RequestError(
                "x-kvmesh-body: hashes may be anybody's: where tenants are kept apart send tokens",
                status=403,
            )
        elif self.keeps_secret:
            raise RequestError(
                "x-kvmesh-body: hashes: this router keys block hashes by a secret of its own; send "
                "tokens, or hash by the secret of a --hash-secret-file that you give the router"
            )
        else:
            hashes = BlockHashes.unpack(request.body, block_size)
            count = min(len(hashes) * block_size, MAX_TOKENS)
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
            overridden=wishes.overridden,
            targets=wishes.targets,
        )

    def _root(self, parsed: Parsed, model: str, extra_key: str) -> int:
        """Return the seed of the request's blocks; its adapter is in `lora_path`, or the model.

        Events name no `extra_key`: what is believed of a prompt with one is of no other's.
        """
        lora = _first_adapter(parsed) or (model if model in self._adapters else "")
        salt = parsed.cache_salt or ""
        if extra_key:
            salt = f"{salt}\0{extra_key}"
        return namespace_root(cache_salt=salt, lora=lora, secret=self._secret)


def _first_adapter(parsed: Parsed) -> str | None:
    """Return the adapter that a request names; of a list of them, one a prompt, the first."""
    named = parsed.lora_path
    if isinstance(named, list):
        return named[0] if named else None
    return named
