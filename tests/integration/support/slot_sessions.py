"""Sessions whose contexts grow, through a router over engines without KV events; what was reused.

`python -m tests.integration.support.slot_sessions --help` prints a row of docs/measured/reuse.md.
"""

import argparse
import asyncio
import json
import random
from collections.abc import Sequence
from typing import Final

import httpx
import msgspec

from tests.integration.support.live_router import client_of, router
from tests.integration.support.slot_engine import SlotEngine, answer_of, slot_engines

BLOCK: Final = 16


class Load(msgspec.Struct, frozen=True):
    """`sessions` take `turns` each, as soon as they have their answer and thought for `think_s`,
    on average. A session begins with `system` tokens that all share and `first` of its own, each
    turn adds `more` and what was answered. `named`: each tells its session.
    """

    sessions: int = 8
    turns: int = 10
    first: int = 320
    system: int = 0
    more: int = 64
    answer: int = 8
    think_s: float = 0.02
    named: bool = True
    seed: int = 1


class Row(msgspec.Struct):
    """One answer: tokens of its prompt, those it shares with its session's last turn and answer,
    those reused and those predicted; the session.
    """

    request_id: str
    prompt: int
    known: int
    reused: int
    session: int
    predicted: int = 0


class Outcome(msgspec.Struct, frozen=True):
    """`shared`: reused tokens of those that an engine of any size reuses. `fits`: the same of what
    so many slots keep at best, of the prompts in the order they came.
    """

    rows: list[Row]
    shared: float
    fits: float
    within: float


async def run(load: Load, client: httpx.AsyncClient) -> list[Row]:
    """Play the sessions, return the answers in their order."""
    rows: list[Row] = []
    await asyncio.gather(*(_session(load, client, n, rows) for n in range(load.sessions)))
    count = {"limit": load.sessions * load.turns}
    decisions = (await client.get("/v1/decisions", params=count)).json()["decisions"]
    predicted = {one["request_id"]: one["overlap_blocks"] * BLOCK for one in decisions}
    for row in rows:
        row.predicted = predicted[row.request_id]
    return rows


async def _session(load: Load, client: httpx.AsyncClient, number: int, rows: list[Row]) -> None:
    rng = random.Random(load.seed * 1000 + number)
    tokens = [*range(load.system), *(rng.randrange(30_000) for _ in range(load.first))]
    headers = {"x-kvmesh-session": f"s{number}"} if load.named else {}
    known = 0
    for turn in range(load.turns):
        name = headers["x-request-id"] = f"{number}-{turn}"
        body = {"model": "mock", "prompt": tokens, "max_tokens": load.answer, "stream": True}
        answer = await client.post("/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        usage = json.loads(answer.text.split("data: ")[-2])["usage"]
        reused = usage["prompt_tokens_details"]["cached_tokens"]
        rows.append(Row(name, len(tokens), known, reused, number))
        tokens = [*tokens, *answer_of(tokens, load.answer)]
        known = len(tokens)
        tokens += [rng.randrange(30_000) for _ in range(load.more)]
        await asyncio.sleep(rng.expovariate(1.0 / load.think_s) if load.think_s else 0.0)


def judge(rows: Sequence[Row], slots: int) -> Outcome:
    """Return what of it was reused, and predicted."""
    reused = sum(min(one.reused, one.known) for one in rows)
    told = [one for one in rows if one.known]
    right = sum(abs(one.predicted - one.reused) <= BLOCK for one in told)
    return Outcome(
        list(rows),
        reused / max(1, sum(one.known for one in rows)),
        reused / max(1, best(rows, slots)),
        right / max(1, len(told)),
    )


def best(rows: Sequence[Row], slots: int) -> int:
    """Return the tokens that so many slots, each with one session's last prompt, reuse at best of
    prompts in this order: of those kept, the one asked for last of all goes (Belady).
    """
    kept: list[int] = []
    found = 0
    for at, row in enumerate(rows):
        if row.session in kept:
            found += row.known
            continue
        if len(kept) == slots:
            later = [one.session for one in rows[at + 1 :]]
            kept.remove(max(kept, key=lambda one: later.index(one) if one in later else len(later)))
        kept.append(row.session)
    return found


async def measure(load: Load, engines: int, slots: int, prefill_ms: float) -> Outcome:
    """Play a load through a router alone."""
    async with slot_engines(engines, slots, prefill_ms=prefill_ms) as running:
        urls = [one.url for one in running]
        async with client_of(router(urls, parity_sample=0, kv_events=True)) as client:
            return judge(await run(load, client), engines * slots)


def main() -> None:
    """Print a row a seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--answer", type=int, default=8)
    parser.add_argument("--prefill-ms", type=float, default=0.2)
    parser.add_argument("--think-s", type=float, default=0.02)
    parser.add_argument("--system", type=int, default=0)
    parser.add_argument("--unnamed", action="store_true")
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    for seed in range(given.runs):
        load = Load(
            given.sessions,
            given.turns,
            answer=given.answer,
            think_s=given.think_s,
            named=not given.unnamed,
            seed=seed,
            system=given.system,
        )
        got = asyncio.run(measure(load, given.engines, given.slots, given.prefill_ms))
        print(  # noqa: T201 - its output
            f"{given.sessions} sessions on {given.engines} x {given.slots} slots, seed {seed}: "
            f"reused {got.shared:.1%} of what they share, {got.fits:.1%} of what fits; "
            f"within a block {got.within:.1%} of {len(got.rows)} requests"
        )


__all__ = ["Load", "SlotEngine", "judge", "main", "measure", "run"]

if __name__ == "__main__":
    main()
