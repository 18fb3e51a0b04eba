"""What the clients saw of one pass, as the figures that promises are about."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf
from typing import Final

import msgspec
import xxhash

HIGH_OVERLAP: Final = 0.5
"""A request has high overlap when so much of its prompt was sent before it."""


class Answer(msgspec.Struct, frozen=True):
    """One request and what came of it. Times in seconds of one clock.

    `sent_before` is the part of its prompt, 0 to 1, in whole blocks, that earlier requests of the
    pass began with: what one cache shared by all workers that never evicts would have held.
    `cached_before` counts of these only the ones whose first token had come.
    """

    dialogue: int
    turn: int
    sent_s: float
    ended_s: float
    ttft_s: float | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    worker: str
    sent_before: float = 0.0
    cached_before: float = 0.0
    error: str = ""

    @property
    def first_token_s(self) -> float:
        """Return when its prompt was computed; never for one without a token."""
        return inf if self.ttft_s is None else self.sent_s + self.ttft_s


class Measured(msgspec.Struct, frozen=True):
    """Figures of one pass. Shares are 0 to 1; None is what could not be measured.

    Where `follow_ups` are judged only they count for hit rate, ceiling, `ready` and TTFT.
    `ttft_s` is the mean of the `high_overlap` requests; `tokens_per_s` counts output tokens while
    every client was under way. `ceiling` is the hit rate of one cache
    shared by all, `ready` what of prompts was cached by any worker when they were sent. `busy` is,
    of each worker, the share of the pass in which it had a request; `busy_spread` the most less
    the least of it. `served` are prompt and output tokens of each worker; `served_spread` is the
    most less the least of them, over the most.
    """

    requests: int
    failed: int
    workers: int
    duration_s: float
    hit_rate: float
    ceiling: float
    ready: float
    high_overlap: int
    ttft_s: float | None
    tokens_per_s: float
    same_worker: float | None
    busy: dict[str, float]
    busy_spread: float
    served: dict[str, int]
    served_spread: float


class Window(msgspec.Struct, frozen=True):
    """Seconds in which every client of a pass was under way: the last had begun, none had ended."""

    start_s: float
    end_s: float


def measure(
    answers: Sequence[Answer],
    workers: Iterable[str],
    window: Window,
    *,
    follow_ups: bool = False,
) -> Measured:
    """Return the figures of a pass; `workers` are all that could have served it."""
    good = [one for one in answers if not one.error]
    judged = [one for one in good if one.turn] if follow_ups else good
    prompt = sum(one.prompt_tokens for one in judged)
    high = [one for one in judged if one.sent_before >= HIGH_OVERLAP]
    times = [one.ttft_s for one in high if one.ttft_s is not None]
    start = min((one.sent_s for one in answers), default=0.0)
    duration_s = max(max((one.ended_s for one in answers), default=0.0) - start, 1e-3)
    names = sorted({*workers, *(one.worker for one in good)})
    busy = {name: _busy_s(good, name) / duration_s for name in names}
    served = dict.fromkeys(names, 0)
    for one in good:
        served[one.worker] += one.prompt_tokens + one.output_tokens
    return Measured(
        requests=len(answers),
        failed=len(answers) - len(good),
        workers=len(names),
        duration_s=duration_s,
        hit_rate=_ratio(sum(one.cached_tokens for one in judged), prompt),
        ceiling=_ratio(sum(one.sent_before * one.prompt_tokens for one in judged), prompt),
        ready=_ratio(sum(one.cached_before * one.prompt_tokens for one in judged), prompt),
        high_overlap=len(high),
        ttft_s=sum(times) / len(times) if times else None,
        tokens_per_s=tokens_per_s(good, window),
        same_worker=_same_worker(good),
        busy=busy,
        busy_spread=max(busy.values(), default=0.0) - min(busy.values(), default=0.0),
        served=served,
        served_spread=spread(served.values()),
    )


def tokens_per_s(answers: Sequence[Answer], window: Window) -> float:
    """Return output tokens a second within the window, or over all answers where it is empty.

    An answer's tokens are taken to come evenly from the first to its end.
    """
    start, end = window.start_s, window.end_s
    if end <= start:
        start = min((one.sent_s for one in answers), default=0.0)
        end = max((one.ended_s for one in answers), default=0.0)
    tokens = 0.0
    for one in answers:
        first_s = min(one.first_token_s, one.ended_s)
        inside_s = min(end, one.ended_s) - max(start, first_s)
        if one.ended_s > first_s:
            tokens += one.output_tokens * max(0.0, inside_s) / (one.ended_s - first_s)
        elif start <= first_s <= end:
            tokens += one.output_tokens
    return _ratio(tokens, end - start)


def spread(values: Iterable[float]) -> float:
    """Return the most less the least, over the most; 0 where there is nothing."""
    found = list(values)
    return _ratio(max(found) - min(found), max(found)) if found else 0.0


class SentBefore:
    """Prompts in the order they were sent, in blocks of `characters`, each chained to the ones
    before it as sequence hashes are.
    """

    def __init__(self, characters: int) -> None:
        self._characters = max(1, characters)
        self._cached_s: dict[int, float] = {}

    def add(self, text: str, sent_s: float, cached_s: float) -> tuple[float, float]:
        """Return how much of `text`, 0 to 1, earlier texts began with, and how much of it was
        cached when it was sent; note that it is cached from `cached_s` on. O(length).
        """
        size, hashed, held, ready = self._characters, 0, 0, 0
        for start in range(0, len(text) - size + 1, size):
            hashed = xxhash.xxh3_64_intdigest(text[start : start + size].encode(), hashed)
            known_s = self._cached_s.get(hashed)
            if known_s is not None and held == start:
                held = start + size
                if known_s <= sent_s and ready == start:
                    ready = held
            self._cached_s[hashed] = min(cached_s, inf if known_s is None else known_s)
        # An engine computes the last token of a prompt itself, so never its last block.
        most = max(0, len(text) - 1) // size * size
        length = max(1, len(text))
        return min(held, most) / length, min(ready, most) / length


def _busy_s(answers: Sequence[Answer], worker: str) -> float:
    """Return in how many seconds the worker had a request under way."""
    total, until = 0.0, float("-inf")
    for one in sorted((a for a in answers if a.worker == worker), key=lambda a: a.sent_s):
        total += max(0.0, one.ended_s - max(one.sent_s, until))
        until = max(until, one.ended_s)
    return total


def _same_worker(answers: Sequence[Answer]) -> float | None:
    """Return the share of follow-ups served by the worker of the turn before; None without any."""
    dialogues: defaultdict[int, list[Answer]] = defaultdict(list)
    for one in sorted(answers, key=lambda one: one.turn):
        dialogues[one.dialogue].append(one)
    kept = [
        later.worker == earlier.worker
        for turns in dialogues.values()
        for earlier, later in pairwise(turns)
    ]
    return sum(kept) / len(kept) if kept else None


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
