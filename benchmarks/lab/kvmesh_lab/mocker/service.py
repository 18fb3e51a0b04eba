"""Generation at the pretend vLLM: requests to ranks, their tokens back to clients."""

import asyncio
import itertools
import time
from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec

from kvmesh.app.prompts.tokenizer import Tokenizer
from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.prompts.byte_tokenizer import check_ids
from kvmesh.core.prompts.media_tokens import Span
from kvmesh.errors import RequestError
from kvmesh.tasks import Jobs
from kvmesh_lab.mocker.engine import EngineRunner
from kvmesh_lab.mocker.generation import Choice, Engine, Generation, make_choices
from kvmesh_lab.mocker.media import Expander, Medium
from kvmesh_lab.mocker.metrics import EngineMetrics
from kvmesh_lab.mocker.model.request import Labels, Step
from kvmesh_lab.mocker.model.transfer import MockTransfer
from kvmesh_lab.mocker.reply import Reply
from kvmesh_lab.mocker.vllm_requests import GenerationRequest, Prompt, error_body
from kvmesh_lab.mocker.vllm_responses import Header
from kvmesh_lab.mocker.vllm_shapes import ID_PREFIXES, shape_of

VERSION: Final = "0.32.0"
"""The vLLM release whose behaviour is imitated."""


class ServedModels(msgspec.Struct, frozen=True):
    """What is served: the base model, under further names too (`aliases`), and adapters by name
    (their ids count from 1).
    """

    base: str
    max_model_len: int
    adapters: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    def answers_as(self, name: str) -> str:
        """Return the model that the answer to a request for `name` names."""
        return name if name in self.adapters else self.base

    def labels(self, request: GenerationRequest, session_id: str | None) -> Labels:
        """Return what goes into the request's block hashes. Raises `RequestError` (404)."""
        name, salt = request.model, request.cache_salt
        if not name or name == self.base or name in self.aliases:
            return Labels(cache_salt=salt, session_id=session_id)
        if name in self.adapters:
            number = self.adapters.index(name) + 1
            return Labels(lora_name=name, lora_id=number, cache_salt=salt, session_id=session_id)
        raise RequestError(f"The model `{name}` does not exist.", status=404, param="model")


class Meets(Protocol):
    """Where a request waits for its other half, or its KV cache."""

    async def meet(self, request: GenerationRequest, prompt: bytes, request_id: str) -> None:
        """Return when it may begin. Raises `RequestError` when it never may."""
        ...


class _Running:
    """One choice that a rank works on."""

    def __init__(self, generation: Generation, choice: Choice, rank: int) -> None:
        self.generation = generation
        self.choice = choice
        self.rank = rank
        self.first_token_at = 0.0


class GenerationService:
    """Serves generation requests from the ranks' engines, whose steps `on_step` must get.

    With `meeting` each request waits for its other half there.
    """

    def __init__(
        self,
        models: ServedModels,
        engine: Engine,
        tokenizer: Tokenizer,
        ranks: Mapping[int, EngineRunner],
        metrics: EngineMetrics,
        transfer: MockTransfer,
    ) -> None:
        self.meeting: Meets | None = None
        self._transfer = transfer
        self.models = models
        self.open_requests = 0
        self._engine = engine
        self._tokenizer = tokenizer
        self._expander = Expander(tokenizer)
        self._metrics = metrics
        self._fingerprint = f"vllm-{VERSION}-{models.base.encode().hex():0<8.8}"
        self._ranks = ranks
        self._running: dict[str, _Running] = {}
        self._numbers = itertools.count()
        self._tokenizing = Jobs("tokenise")

    def serve(self, reply: Reply, request: GenerationRequest) -> None:
        """Answer `request`, now or as its tokens come. Raises `RequestError`."""
        session = reply.request.header(b"x-session-id")
        session_id = request.session_id or (session.decode("latin-1") if session else None)
        labels = self.models.labels(request, session_id)
        rank = self._choose_rank(reply)
        long = len(reply.request.body) > self._tokenizer.inline_characters
        if not long and self.meeting is None:
            prompts, labels = self._tokenize(request, labels)
            self._start(reply, request, labels, rank, prompts)
            return
        self._tokenizing.start(self._tokenize_and_start(reply, request, labels, rank))

    def on_step(self, rank: int, step: Step, seconds: float) -> None:
        """Hand out the tokens of a step that has just ended."""
        now = asyncio.get_running_loop().time()
        decoded = len(step.produced) - len(step.prefilled)
        metrics = self._metrics.ranks[rank]
        metrics.on_step(step.prefill_tokens + decoded, decoded, seconds)
        for request in step.produced:
            running = self._running.get(request.request_id)
            if running is None:
                continue
            choice = running.choice
            if choice.produced == 0:
                running.first_token_at = now
                waited = now - request.queued_at
                metrics.on_first_token(request.prompt_tokens, request.cached_tokens, waited)
            complete = running.generation.advance(choice)
            if choice.is_finished:
                self._finish(running, now)
            self.open_requests -= complete

    async def close(self) -> None:
        """Give up requests that are still being tokenised."""
        await self._tokenizing.close()

    async def _tokenize_and_start(
        self, reply: Reply, request: GenerationRequest, labels: Labels, rank: int
    ) -> None:
        try:
            prompts, labels = await asyncio.to_thread(self._tokenize, request, labels)
            if self.meeting is not None:
                await self.meeting.meet(request, prompts[0].tobytes(), _name_of(reply, request))
            self._start(reply, request, labels, rank, prompts)
        except RequestError as error:
            reply.respond(error.status, error_body(error))

    def encode_chat(
        self, chat: ChatInput, media: Sequence[Medium]
    ) -> "tuple[array[int], tuple[Span, ...]]":
        """Return a chat's tokens, and which of them stand for media. Raises `RequestError`."""
        return self._expander.expand(self._tokenizer.encode_chat(chat), media)

    def _tokenize(
        self, request: GenerationRequest, labels: Labels
    ) -> "tuple[list[array[int]], Labels]":
        """Return each prompt's tokens, and the labels with its media; touches nothing but the
        tokenizer. Raises `RequestError`.
        """
        if request.chat is not None:
            ids, spans = self.encode_chat(request.chat, request.media)
            prompts, labels = [ids], msgspec.structs.replace(labels, media=spans)
        else:
            prompts = [self._encode(prompt, request) for prompt in request.prompts]
        if not all(prompts):
            raise RequestError("The decoder prompt cannot be empty", param="prompt")
        keep = request.keep_last_tokens
        if keep is not None and keep > 0:
            prompts = [prompt[-keep:] for prompt in prompts]
        return prompts, labels

    def _encode(self, prompt: Prompt, request: GenerationRequest) -> "array[int]":
        if isinstance(prompt, str):
            return self._tokenizer.encode(prompt, add_special_tokens=request.add_special_tokens)
        check_ids(prompt, self._tokenizer.vocab_size)
        return array("I", prompt)

    def _choose_rank(self, reply: Reply) -> int:
        """Return the rank a header names, else the least loaded one. Raises `RequestError`."""
        named = reply.request.header(b"x-data-parallel-rank")
        if named is None or not named.strip().lstrip(b"-").isdigit():
            return min(self._ranks, key=lambda rank: self._ranks[rank].load)
        rank = int(named)
        if rank not in self._ranks:
            raise RequestError(
                f"data_parallel_rank {rank} is out of range [0, {len(self._ranks)})."
            )
        return rank

    def _start(
        self,
        reply: Reply,
        request: GenerationRequest,
        labels: Labels,
        rank: int,
        prompts: "list[array[int]]",
    ) -> None:
        if reply.disconnected:
            return
        name = _name_of(reply, request)
        response_id = f"{ID_PREFIXES[request.kind]}{name}"
        unique = f"{response_id}/{next(self._numbers)}"
        offered = self._transfer.begin(
            request.transfer,
            prompts[0],
            name,
            max_tokens=request.max_tokens,
            stream=request.stream,
            sequences=len(prompts) * request.choices,
        )
        choices = make_choices(self._engine, request, prompts, labels, unique)
        header = Header(
            response_id,
            int(time.time()),
            self.models.answers_as(request.model or ""),
            self._fingerprint,
            offered,
        )
        generation = Generation(reply, request, shape_of(request, header, prompts), choices)
        for choice in choices:
            self._submit(generation, choice, rank)
        self.open_requests += 1
        generation.start(partial(self._abandon, generation))

    def _submit(self, generation: Generation, choice: Choice, rank: int) -> None:
        refused = self._ranks[rank].submit(choice.request)
        if refused is not None:
            self._cancel(generation)
            raise RequestError(refused)
        self._running[choice.request.request_id] = _Running(generation, choice, rank)

    def _abandon(self, generation: Generation) -> None:
        """Free what a client that went away was holding."""
        self.open_requests -= 1
        self._cancel(generation)

    def _cancel(self, generation: Generation) -> None:
        for choice in generation.choices:
            running = self._running.pop(choice.request.request_id, None)
            if running is not None:
                self._ranks[running.rank].cancel(choice.request.request_id)
                self._metrics.ranks[running.rank].on_end("abort")

    def _finish(self, running: _Running, now: float) -> None:
        request, ending = running.choice.request, running.choice.ending
        del self._running[request.request_id]
        metrics = self._metrics.ranks[running.rank]
        metrics.on_end(ending.reason)
        scheduled = request.queued_at if request.scheduled_at is None else request.scheduled_at
        times = (request.queued_at, scheduled, running.first_token_at, now)
        metrics.on_finish(times, request.prompt_tokens, ending.tokens)


def _name_of(reply: Reply, request: GenerationRequest) -> str:
    """Return the name that a request's answer and its KV transfer go by."""
    name = request.request_id
    if name is None or reply.request.header(b"x-request-id") is not None:
        return reply.request_id.decode("latin-1")
    return name
