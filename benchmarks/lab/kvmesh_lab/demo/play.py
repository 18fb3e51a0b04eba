"""Sends a workload under one policy, and notes what came back."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, cycle
from random import Random
from statistics import median
from time import perf_counter
from typing import Final

import msgspec

from kvmesh.app.views.overview import Overview
from kvmesh.errors import TransportError
from kvmesh_lab.demo.measures import Answer, SentBefore, Window
from kvmesh_lab.demo.promises import Policy
from kvmesh_lab.demo.texts import Dialogue, Workload
from kvmesh_lab.replay.client import ReplayClient, ReplayExchange

PATH: Final = "/v1/chat/completions"
UNKNOWN: Final = "unknown"
BEGIN: Final = "\1"
END: Final = "\2"
"""A message's ends in a prompt: about one token each."""

Message = Mapping[str, str]


class Mesh(msgspec.Struct, frozen=True):
    """What is measured: its model, workers and block size; `buckets` where a meta-router chooses
    one, each as often as it has workers.
    """

    model: str
    workers: tuple[str, ...]
    buckets: tuple[str, ...]
    block_size: int
    characters: float = 1.0


def read_mesh(overview: Overview, model: str) -> Mesh:
    """Return what a router's or meta-router's overview tells. Raises `TransportError`."""
    models = sorted({name for one in overview.workers for name in one.models})
    chosen = model or (models[0] if models else "")
    fit = [one for one in overview.workers if one.usable and chosen in one.models]
    if not fit:
        raise TransportError(
            f"no usable worker serves {chosen or 'a model'!r}; served are: {', '.join(models)}"
        )
    buckets = [one.bucket for one in fit] if overview.role == "meta-router" else []
    return Mesh(
        model=chosen,
        workers=tuple(one.worker for one in fit),
        buckets=tuple(buckets),
        block_size=overview.block_size,
    )


class Player:
    """Sends dialogues; one for all passes of a run."""

    def __init__(self, client: ReplayClient, mesh: Mesh, api_key: str, seed: str) -> None:
        self._client = client
        self._mesh = mesh
        self._rng = Random(seed)  # noqa: S311  no secret
        self._headers = [(b"content-type", b"application/json"), (b"accept", b"text/event-stream")]
        if api_key:
            self._headers.append((b"authorization", f"Bearer {api_key}".encode()))

    async def play(self, workload: Workload, policy: Policy) -> tuple[list[Answer], Window]:
        """Send every dialogue, `lanes` at a time; return all answers in the order of sending, and
        when all lanes were in use.
        """
        answers: list[tuple[Answer, str, str]] = []
        waiting = iter(enumerate(workload.dialogues))
        buckets = self._buckets(policy)
        began, ended = perf_counter(), list[float]()

        async def lane(place: int) -> None:
            await asyncio.sleep(place * workload.ramp_s / workload.lanes)
            for number, dialogue in waiting:
                await self._hold(number, dialogue, policy, buckets, answers)
            ended.append(perf_counter())

        async with asyncio.TaskGroup() as group:
            for place in range(min(workload.lanes, len(workload.dialogues))):
                group.create_task(lane(place))
        sent = SentBefore(round(self._mesh.block_size * self._mesh.characters))
        return find_sent_before(answers, sent), Window(began + workload.ramp_s, min(ended))

    async def savable_ttft(self, texts: Sequence[str]) -> float:
        """Return how much of the TTFT, 0 to 1, a prompt saves that is cached whole: the median of
        each of `texts` sent for the first time against the second, one request at a time.
        """
        saved: list[float] = []
        for text in texts:
            cold, warm = [await self._ttft_s(text), await self._ttft_s(text)]
            if cold and warm:
                saved.append(1.0 - warm / cold)
        return median(saved) if saved else 0.0

    async def characters_a_token(self, text: str) -> float:
        """Return how many characters of `text` make a token here. Raises `TransportError`."""
        exchange = await self._send([{"role": "user", "content": text}], 1, "kv", "")
        if exchange.error or not exchange.reader.prompt_tokens:
            why = f"{exchange.error}: {exchange.detail}" if exchange.error else "no usage"
            raise TransportError(f"the first request of the demonstration failed: {why}")
        return max(1.0, len(text) / exchange.reader.prompt_tokens)

    def _buckets(self, policy: Policy) -> Iterator[str]:
        """Yield the bucket each request shall name: "" leaves it to the meta-router, as clients
        do; the blind policies go over all workers, whatever bucket these are in.
        """
        names = self._mesh.buckets
        if policy == "kv" or len(set(names)) < 2:  # noqa: PLR2004  one bucket is no choice
            return cycle(("",))
        if policy == "random":
            return (self._rng.choice(names) for _ in count())
        return cycle(names)

    async def _hold(
        self,
        number: int,
        dialogue: Dialogue,
        policy: Policy,
        buckets: Iterator[str],
        answers: list[tuple[Answer, str, str]],
    ) -> None:
        messages = [{"role": "system", "content": dialogue.system}] if dialogue.system else []
        for turn, said in enumerate(dialogue.turns):
            messages.append({"role": "user", "content": said})
            exchange = await self._send(messages, dialogue.max_tokens, policy, next(buckets))
            text = "".join(f"{BEGIN}{one['content']}{END}" for one in messages) + BEGIN
            answered = "".join(exchange.reader.texts)
            answers.append((_answer(number, turn, exchange), text, answered))
            messages.append({"role": "assistant", "content": answered})
            if exchange.error:
                return

    async def _ttft_s(self, text: str) -> float:
        exchange = await self._send([{"role": "user", "content": text}], 1, "kv", "")
        times = exchange.reader.token_times
        return times[0] - exchange.sent_s if times else 0.0

    async def _send(
        self, messages: Sequence[Message], max_tokens: int, policy: Policy, bucket: str
    ) -> ReplayExchange:
        body = {
            "model": self._mesh.model,
            "messages": messages,
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = [*self._headers, (b"x-kvmesh-router-mode", policy.encode())]
        if bucket:
            headers.append((b"x-kvmesh-bucket", bucket.encode()))
        return await self._client.stream(PATH, headers, msgspec.json.encode(body))


def find_sent_before(answers: Sequence[tuple[Answer, str, str]], sent: SentBefore) -> list[Answer]:
    """Return the answers, each with its prompt and its text, in the order of sending, with what of
    each prompt was sent before, and what was cached somewhere by then.
    """
    found: list[Answer] = []
    for answer, text, answered in sorted(answers, key=lambda one: one[0].sent_s):
        sent_before, cached_before = sent.add(text, answer.sent_s, answer.first_token_s)
        sent.add(text + answered, answer.sent_s, answer.ended_s)
        found.append(
            msgspec.structs.replace(answer, sent_before=sent_before, cached_before=cached_before)
        )
    return found


def _answer(number: int, turn: int, exchange: ReplayExchange) -> Answer:
    reader = exchange.reader
    times = reader.token_times
    return Answer(
        dialogue=number,
        turn=turn,
        sent_s=exchange.sent_s,
        ended_s=exchange.ended_s,
        ttft_s=times[0] - exchange.sent_s if times else None,
        prompt_tokens=reader.prompt_tokens,
        cached_tokens=reader.cached_tokens,
        output_tokens=reader.output_tokens or len(times),
        worker=exchange.headers.get(b"x-kvmesh-worker", b"").decode("latin-1") or UNKNOWN,
        error=exchange.error and f"{exchange.error}: {exchange.detail}",
    )
