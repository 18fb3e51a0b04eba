"""Prompts with shared prefixes, sent one by one, and what was predicted against what was reused."""

import random
from collections.abc import Iterator
from typing import Any

import msgspec

from tests.engines.mesh import EngineMesh
from tests.unit.app.prompts.tokenizer_models import corpus

FAMILIES = 10
ANSWER_TOKENS = 4


class Comparison(msgspec.Struct, frozen=True):
    """One answered request: tokens predicted by the router, tokens reused by the engine."""

    kind: str
    worker: str
    router: str
    prompt: int
    predicted: int
    cached: int


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

    def requests(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
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
            yield kind, "/v1/chat/completions", common | {"messages": chat}

    def _question(self) -> dict[str, str]:
        tail = self._rng.choice(self._tails)
        start = self._rng.randrange(max(1, len(tail) - 200))
        return {"role": "user", "content": tail[start : start + self._rng.randrange(20, 200)]}


def compare(mesh: EngineMesh, traffic: Traffic, count: int, block_size: int) -> list[Comparison]:
    """Send `count` requests through the replicas in turn, each when all events are read."""
    made: list[Comparison] = []
    requests = traffic.requests()
    while len(made) < count:
        kind, path, body = next(requests)
        mesh.settle()
        router = mesh.router_urls[len(made) % len(mesh.router_urls)]
        answer = mesh.http.post(f"{router}{path}", json=body)
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        made.append(
            Comparison(
                kind=kind,
                worker=answer.headers["x-kvmesh-worker"],
                router=answer.headers["x-kvmesh-router"],
                prompt=usage["prompt_tokens"],
                predicted=int(answer.headers["x-kvmesh-overlap-blocks"]) * block_size,
                cached=(usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0,
            )
        )
    return made


def exact_share(made: list[Comparison]) -> float:
    """Return the share of requests whose prediction was exact."""
    return sum(one.predicted == one.cached for one in made) / len(made)


def table_row(name: str, made: list[Comparison]) -> str:
    """Return one line of the report; all but the share are counted in tokens."""
    wrong = [one for one in made if one.predicted != one.cached]
    return (
        f"| {name} | {len(made)} | {exact_share(made):.2%} "
        f"| {sum(one.predicted > one.cached for one in wrong)} "
        f"| {sum(one.predicted < one.cached for one in wrong)} "
        f"| {sum(one.cached for one in made) / sum(one.prompt for one in made):.1%} "
        f"| {sum(one.cached > 0 for one in made)} |"
    )
