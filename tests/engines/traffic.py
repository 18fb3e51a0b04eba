"""Prompts with shared prefixes, sent one by one, and what was predicted against what was reused."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Protocol

import httpx
import msgspec

from tests.unit.app.prompts.tokenizer_models import corpus

FAMILIES = 10
ANSWER_TOKENS = 4


Sent = tuple[str, str, dict[str, Any]]
"""The kind, path and body of a request."""


class Routers(Protocol):
    """Routers over engines. `settle` returns when they have read all that engines told."""

    http: httpx.Client
    router_urls: list[str]
    front_url: str

    def settle(self) -> None: ...


class Comparison(msgspec.Struct, frozen=True):
    """One answered request: tokens predicted by the router, tokens reused by the engine.

    `unforeseen` says why the router predicted nothing.
    """

    kind: str
    worker: str
    router: str
    prompt: int
    predicted: int
    cached: int
    unforeseen: str = ""


class Traffic:
    """Endless requests drawn by `seed`: conversations over long shared system prompts."""

    def __init__(self, seed: int, block_size: int, vocabulary: int) -> None:
        self._rng = random.Random(seed)
        self._block_size = block_size
        self._vocabulary = vocabulary
        texts = corpus()
        self._systems = [
            texts[n][2000 : 2000 + self._rng.randrange(300, 1100)] for n in range(FAMILIES)
        ]
        self._tails = [text[5000:] for text in texts]
        self._chats: list[list[dict[str, str]]] = []
        self._ids = [
            [self._rng.randrange(300, vocabulary - 50) for _ in range(block_size * 12)]
            for _ in range(4)
        ]

    def requests(self) -> Iterator[Sent]:
        """Yield the kind, path and body of each request."""
        while True:
            kind = self._rng.choices(
                ["new chat", "next turn", "repeated", "whole blocks"], weights=[5, 4, 2, 2]
            )[0]
            common = {"model": "tiny", "max_tokens": ANSWER_TOKENS, "temperature": 0.0}
            if kind == "whole blocks":
                # The last block of a prompt that fills its blocks is stored, but never reused.
                ids = self._rng.choice(self._ids)[: self._block_size * self._rng.randrange(1, 12)]
                yield kind, "/v1/completions", common | {"prompt": ids}
                continue
            if kind == "new chat" or not self._chats:
                system = {"role": "system", "content": self._rng.choice(self._systems)}
                self._chats.append([system, self._question()])
                self._chats = self._chats[-24:]
            chat = self._rng.choice(self._chats) if kind != "new chat" else self._chats[-1]
            if kind == "next turn" and len(chat) < 8:
                chat += [{"role": "assistant", "content": "Indeed so."}, self._question()]
            yield kind, "/v1/chat/completions", common | {"messages": list(chat)}

    def _question(self) -> dict[str, str]:
        tail = self._rng.choice(self._tails)
        start = self._rng.randrange(max(1, len(tail) - 200))
        return {"role": "user", "content": tail[start : start + self._rng.randrange(20, 200)]}


def compare(
    routers: Routers, traffic: Traffic, count: int, block_size: int, in_flight: int = 1
) -> list[Comparison]:
    """Send `count` requests: one at a time through the replicas in turn, each when all events are
    read, or `in_flight` at a time through the front.
    """
    requests = list(islice(traffic.requests(), count))
    routers.settle()
    if in_flight > 1:
        with ThreadPoolExecutor(in_flight) as senders:
            pending = [
                senders.submit(ask, routers, routers.front_url, sent, block_size)
                for sent in requests
            ]
            return [one.result() for one in pending]
    made: list[Comparison] = []
    for number, sent in enumerate(requests):
        routers.settle()
        urls = routers.router_urls
        made.append(ask(routers, urls[number % len(urls)], sent, block_size))
    return made


def ask(routers: Routers, url: str, sent: Sent, block_size: int) -> Comparison:
    """Send one request to a replica, or to the front."""
    kind, path, body = sent
    answer = routers.http.post(f"{url}{path}", json=body)
    assert answer.status_code == 200, answer.text
    prompt, cached = read_usage(answer.json()["usage"])
    return Comparison(
        kind=kind,
        worker=answer.headers["x-kvmesh-worker"],
        router=answer.headers["x-kvmesh-router"],
        prompt=prompt,
        predicted=int(answer.headers["x-kvmesh-overlap-blocks"]) * block_size,
        cached=cached,
        unforeseen=answer.headers.get("x-kvmesh-unforeseen", ""),
    )


def read_usage(usage: dict[str, Any]) -> tuple[int, int]:
    """Return the tokens of the prompt, and those reused, as an answer of any API tells them."""
    if "cache_read_input_tokens" in usage:
        cached = usage["cache_read_input_tokens"] or 0
        return usage["input_tokens"] + cached, cached
    details: dict[str, int | None] = (
        usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    )
    tokens: int = usage.get("prompt_tokens") or usage.get("input_tokens") or 0
    return tokens, details.get("cached_tokens") or 0


def exact_share(made: list[Comparison]) -> float:
    """Return the share of requests whose prediction was exact."""
    return sum(one.predicted == one.cached for one in made) / len(made)


def share_within(made: list[Comparison], tokens: int) -> float:
    """Return the share of requests whose prediction was at most so many tokens off."""
    return sum(abs(one.predicted - one.cached) <= tokens for one in made) / len(made)


def mean_error(made: list[Comparison]) -> float:
    """Return how many tokens predictions were off, in the mean."""
    return sum(abs(one.predicted - one.cached) for one in made) / len(made)


def reused_share(made: list[Comparison]) -> float:
    """Return the share of all prompts' tokens that was reused."""
    return sum(one.cached for one in made) / sum(one.prompt for one in made)


def table_row(name: str, made: list[Comparison]) -> str:
    """Return one line of the report; all but the share are counted in tokens."""
    wrong = [one for one in made if one.predicted != one.cached]
    return (
        f"| {name} | {len(made)} | {exact_share(made):.2%} "
        f"| {sum(one.predicted > one.cached for one in wrong)} "
        f"| {sum(one.predicted < one.cached for one in wrong)} "
        f"| {reused_share(made):.1%} "
        f"| {sum(one.cached > 0 for one in made)} |"
    )
