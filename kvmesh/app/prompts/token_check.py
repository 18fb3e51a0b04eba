"""Whether token ids are the engines' own, asked of them; and theirs, where ours are not."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Final

import msgspec

from kvmesh.app.prompts.tokenizer import ModelTokenizer
from kvmesh.bounds import UNREADABLE
from kvmesh.core.blocks.hashing import BlockHashes, Hashes
from kvmesh.core.chat.inference import InferenceRequest
from kvmesh.core.chat.media import Sent
from kvmesh.core.prompts.media_tokens import Told
from kvmesh.core.prompts.parity import (
    RETURN_IDS_HEADERS,
    ParityOptions,
    ParityProbe,
    ParityReport,
    ParityStatistics,
    engine_prompt_ids,
)
from kvmesh.core.prompts.probe_request import (
    media_question,
    media_told,
    one_token_body,
    tokenize_body,
    tokenized_ids,
)
from kvmesh.core.prompts.remote_prefixes import PrefixStatistics, RemotePrefixes, prefix_chain
from kvmesh.core.prompts.tokenizer_facts import TokenizerStatistics
from kvmesh.errors import CodecError, TransportError
from kvmesh.observe import get_logger
from kvmesh.tasks import Jobs
from kvmesh.transport.http.fetch import HTTP_OK, fetch
from kvmesh.transport.http.forward.plan import Target
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.headers import Headers

MAX_IN_FLIGHT: Final = 16
"""Questions to engines at a time; more are not asked, the next request will do as well."""

MAX_BODY_BYTES: Final = 1 << 20
TIMEOUT_S: Final = 30.0
DELAY_S: Final = 1.0
"""So long a prompt's own request is let go ahead of the comparison."""

NAMELESS_S: Final = 600.0
"""So long none is asked for names of media where one does not serve that."""

_NOT_SERVED: Final = frozenset({403, 404, 405, 501})
_PASSED_ON: Final = (b"authorization",)
_NO_HASHES: Final = BlockHashes.of([], 1)

Holder = Callable[[str, Hashes], Target | None]
"""A worker that serves a model and holds most of a prompt; None when none serves it."""

Ours = Callable[[], tuple[Sequence[int], bool]]
"""Makes our ids of a prompt, and whether they are only its beginning."""


class _Question(msgspec.Struct, frozen=True):
    """What is asked of an engine that serves `model`, best of one that holds `hashes`."""

    model: str
    path: str
    body: bytes
    headers: Headers
    hashes: Hashes


class TokenCheckStatistics(msgspec.Struct, frozen=True):
    """What was compared, learned, and not answered; what tokenised. Counts since the start."""

    parity: ParityStatistics
    prefixes: PrefixStatistics
    unanswered: int
    untold: int
    tokenizer: TokenizerStatistics | None = None


class TokenCheck:
    """Compares a sample of prompts with the engines' ids, off the requests' way.

    `probe` says which requests to compare, and whether our ids count for a model: one that
    disagrees is not routed by them any more. Its chats are then routed by the ids that its
    engine's `/tokenize` told for their earlier messages, where those are known (`find_prefix`),
    which is asked in the background. `tokenizer` is what makes our ids, None for bytes. While
    `holds` says that requests are held for their turn, no prompt is compared: the engine would
    compute it at once, and evict what they are held for.
    """

    def __init__(self, pool: UpstreamPool, holder: Holder, options: ParityOptions) -> None:
        self._pool = pool
        self._holder = holder
        self.probe = ParityProbe(options)
        self._prefixes = RemotePrefixes()
        self.tokenizer: ModelTokenizer | None = None
        self.holds: Callable[[], bool] = bool
        self._loop = asyncio.get_running_loop()
        self._tasks = Jobs("token check")
        self._unanswered = self._untold = 0
        self._nameless_until = 0.0
        self._log = get_logger()

    def compare(self, model: str, request: Request, hashes: Hashes, ours: Ours) -> None:
        """Ask for the engine's ids of a prompt and compare. From any thread.

        The engine is that which holds the prompt (`hashes`) when it had time to answer the request
        itself, so that nothing is computed twice. `ours` makes our ids again, in a thread.
        """
        question = _Question(model, request.path, request.body, _passed_on(request), hashes)
        self._start(lambda: self._compare(question, ours))

    def find_prefix(self, parsed: InferenceRequest) -> tuple[int, bytes]:
        """Return what is known of a chat's beginning: its bytes as sent, its packed u32 ids."""
        messages = _messages(parsed)
        depth, ids = self._prefixes.find(_chain(parsed, messages))
        return sum(map(len, messages[:depth])), ids

    def learn(self, parsed: InferenceRequest, request: Request) -> None:
        """Ask an engine for the ids of a chat, unless they are known. From any thread."""
        if len(request.body) <= MAX_BODY_BYTES:
            headers = _passed_on(request)
            self._start(lambda: self._learn(parsed, headers))

    def ask_of_media(
        self,
        model: str,
        sent: Sent,
        request: Request,
        then: Callable[[Told | None], None],
        put_off: Callable[[], object],
    ) -> None:
        """Ask an engine what it makes of media, and tell it to `then` from the event loop; None: no
        engine answered. `put_off` is called where none can be asked now. From any thread.
        """
        path, body = media_question(model, sent)
        question = _Question(model, path, body, _passed_on(request), _NO_HASHES)

        async def ask() -> None:
            status, answer = await self._fetch(question)
            if status in _NOT_SERVED and not sent.named:
                self._nameless_until = self._loop.time() + NAMELESS_S
                put_off()
                return
            then(media_told(answer, sent) if status == HTTP_OK else None)

        self._start(ask, put_off)

    def tells_names(self) -> bool:
        """Return whether engines may tell the names of their own of media: none refused lately."""
        return self._loop.time() >= self._nameless_until

    def warnings(self) -> tuple[str, ...]:
        """Return which models are not routed by our token ids, one line each."""
        return tuple(
            f"our token ids of model {model} are not its engine's: it is routed by those its "
            "/tokenize returns, else by bytes; give --tokenizer the engine's model directory"
            for model in self.probe.statistics().by_model()
        )

    def statistics(self) -> TokenCheckStatistics:
        """Return the present counts."""
        return TokenCheckStatistics(
            self.probe.statistics(),
            self._prefixes.statistics(),
            self._unanswered,
            self._untold,
            self.tokenizer.statistics() if self.tokenizer else None,
        )

    async def close(self) -> None:
        """Ask nothing more."""
        await self._tasks.close()

    def _start(
        self,
        work: Callable[[], Coroutine[None, None, None]],
        refuse: Callable[[], object] = bool,
    ) -> None:
        def begin() -> None:
            if len(self._tasks) < MAX_IN_FLIGHT:
                self._tasks.start(work())
            else:
                refuse()

        self._loop.call_soon_threadsafe(begin)

    async def _compare(self, question: "_Question", ours: Ours) -> None:
        model = question.model
        try:
            body = one_token_body(question.body)
        except CodecError:
            return
        await asyncio.sleep(DELAY_S)
        if self.holds():
            return
        headers = (*RETURN_IDS_HEADERS, *question.headers)
        answer = await self._ask(msgspec.structs.replace(question, body=body, headers=headers))
        theirs = None if answer is None else engine_prompt_ids(answer)
        if theirs is None:
            self._untold += answer is not None
            return
        ids, truncated = await asyncio.to_thread(ours)
        if ids:
            self._judge(self.probe.observe(model, ids, theirs, truncated=truncated))

    def _judge(self, report: ParityReport) -> None:
        if report.position is not None:
            self._log.error("token ids differ from the engine's", problem=report.describe())
        elif report.changed:
            self._log.info("token ids agree with the engine's again", model=report.model)

    async def _learn(self, parsed: InferenceRequest, headers: Headers) -> None:
        """Ask for the whole chat, and for its system message, which other chats share."""
        messages = _messages(parsed)
        chain = _chain(parsed, messages)
        if not chain or self._prefixes.knows(chain[-1]):
            return
        whole = await self._tokenize(parsed, messages, headers)
        if whole is None:
            return
        self._prefixes.learn(chain, whole)
        if len(chain) > 1 and not self._prefixes.knows(chain[0]):
            head = await self._tokenize(parsed, messages[:1], headers)
            if head is not None and whole[: len(head)] == head:
                self._prefixes.learn(chain[:1], head)

    async def _tokenize(
        self, parsed: InferenceRequest, messages: Sequence[msgspec.Raw], headers: Headers
    ) -> list[int] | None:
        model = parsed.model or ""
        fields = {
            "model": msgspec.Raw(msgspec.json.encode(model)),
            "tools": parsed.tools,
            "chat_template_kwargs": parsed.chat_template_kwargs,
        }
        body = tokenize_body({name: raw for name, raw in fields.items() if bytes(raw)}, messages)
        answer = await self._ask(_Question(model, "/tokenize", body, headers, _NO_HASHES))
        return None if answer is None else tokenized_ids(answer)

    async def _ask(self, question: "_Question") -> bytes | None:
        """Return the body of a good answer; None for any other."""
        status, answer = await self._fetch(question)
        return answer if status == HTTP_OK else None

    async def _fetch(self, question: "_Question") -> tuple[int, bytes]:
        """Return status and body of an answer; 0 for none."""
        holder = self._holder(question.model, question.hashes)
        if holder is None:
            return 0, b""
        try:
            status, answer = await fetch(
                self._pool,
                holder.origin,
                question.path,
                timeout_s=TIMEOUT_S,
                headers=(*question.headers, *holder.headers),
                json=question.body,
            )
        except TransportError as error:
            self._log.debug("engine does not return token ids", error=str(error))
            status, answer = 0, b""
        self._unanswered += status != HTTP_OK
        return status, answer


_raw_messages = msgspec.json.Decoder(list[msgspec.Raw])


def _messages(parsed: InferenceRequest) -> list[msgspec.Raw]:
    """Return the chat's messages, each as it was sent."""
    try:
        return _raw_messages.decode(parsed.messages)
    except UNREADABLE:
        return []


def _chain(parsed: InferenceRequest, messages: Sequence[msgspec.Raw]) -> list[int]:
    context = (
        (parsed.model or "").encode(),
        bytes(parsed.tools),
        bytes(parsed.chat_template_kwargs),
        (parsed.cache_salt or "").encode("utf-8", "surrogatepass"),
    )
    return prefix_chain(context, messages)


def _passed_on(request: Request) -> Headers:
    """Return the headers an engine may ask of any client."""
    found = ((name, request.header(name)) for name in _PASSED_ON)
    return tuple((name, value) for name, value in found if value is not None)
