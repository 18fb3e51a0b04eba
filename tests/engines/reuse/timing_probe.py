"""Whether times tell what others asked: a prober's right and wrong guesses, held apart by nothing
but how soon they are answered.
"""

import random
import time
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec

PROMPT_TOKENS = 896


class Probed(msgspec.Struct):
    """What a prober saw of its guesses: seconds to the answer, and tokens said to be cached."""

    right_s: list[float] = []
    wrong_s: list[float] = []
    right_cached: list[int] = []
    wrong_cached: list[int] = []

    def auc(self) -> float:
        """Return how often a right guess is answered sooner than a wrong one; 0.5 tells nothing."""
        return auc(self.right_s, self.wrong_s)

    def cached_auc(self) -> float:
        """Return the same of the cached tokens in the answers: more tells a right one."""
        return auc([-one for one in self.right_cached], [-one for one in self.wrong_cached])


def auc(right: Sequence[float], wrong: Sequence[float]) -> float:
    """Return the share of pairs in which the right one is less; a tie counts half.

    That is the area under the ROC curve of a probe that takes small for right.
    """
    pairs = [(one < other) + 0.5 * (one == other) for one in right for other in wrong]
    return sum(pairs) / len(pairs)


class Prober:
    """Asks as tenants do: `headers` by their names."""

    def __init__(self, url: str, headers: dict[str, dict[str, str]], vocabulary: int) -> None:
        self.http = httpx.Client(base_url=url, timeout=120.0)
        self._headers = headers
        self._vocabulary = vocabulary

    def ask(
        self, tenant: str, body: dict[str, Any], path: str = "/v1/completions"
    ) -> httpx.Response:
        """Return the answer to a tenant's request."""
        answer = self.http.post(path, json=body, headers=self._headers[tenant])
        assert answer.status_code == 200, answer.text
        return answer

    def post(
        self, tenant: str, text: str, path: str = "/v1/completions", status: int = 200
    ) -> httpx.Response:
        """Return the answer to a request written as `text`."""
        headers = self._headers[tenant] | {"content-type": "application/json"}
        answer = self.http.post(path, content=text, headers=headers)
        assert answer.status_code == status, answer.text
        return answer

    def secrets(self, rng: random.Random, count: int) -> list[list[int]]:
        """Return prompts that nobody has sent."""
        ids = range(3, self._vocabulary)
        return [rng.choices(ids, k=PROMPT_TOKENS) for _ in range(count)]

    def probe(self, seed: int, count: int, model: str) -> Probed:
        """Have `alice` send `count` secrets, and `bob` guess as many right as wrong, mixed."""
        rng = random.Random(seed)
        reported, untold = self.secrets(rng, count), self.secrets(rng, count)
        for prompt in reported:
            self.ask("alice", completion(model, prompt))
        for prompt in self.secrets(rng, 5):
            self.ask("bob", completion(model, prompt))
        guesses = [(prompt, True) for prompt in reported] + [(prompt, False) for prompt in untold]
        rng.shuffle(guesses)
        seen = Probed()
        for prompt, right in guesses:
            began = time.perf_counter()
            answer = self.ask("bob", completion(model, prompt)).json()
            taken_s = time.perf_counter() - began
            (seen.right_s if right else seen.wrong_s).append(taken_s)
            (seen.right_cached if right else seen.wrong_cached).append(cached_tokens(answer))
        return seen

    def close(self) -> None:
        self.http.close()


def completion(model: str, prompt: list[int]) -> dict[str, Any]:
    """Return the request whose answer is there as soon as its first token."""
    return {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0.0}


def cached_tokens(answer: Any) -> int:
    """Return what an answer of any API says was cached of its prompt."""
    usage = answer["usage"]
    for name in ("prompt_tokens_details", "input_tokens_details"):
        if usage.get(name):
            found: int = usage[name]["cached_tokens"] or 0
            return found
    return usage.get("cache_read_input_tokens") or 0
