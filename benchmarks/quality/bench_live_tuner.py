"""The tuner over real processes: a router with --auto-tune propose, four mockers, three phases.

    python -m benchmarks.quality.bench_live_tuner --cost prefill-decode --seconds 600

What the tuner proposes is sent to PUT /admin/policy, as an operator would. Prints what tuner and
rollout did, and p90 times of each phase's end as the client saw them; with --compare the same load
once more with --auto-tune off. Processes of a busy machine add times of their own.
"""

import argparse
import asyncio
import contextlib
import json
import random
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec

from benchmarks.quality.phases import BLOCK, PHASES
from benchmarks.started import Started
from kvmesh.core.insight.weight_search import quantile, score_of
from kvmesh_lab.traces.trace import TraceRequest

ENGINES = 4
STEADY_FROM = 0.7
RATES = {"prefill-heavy": 12.0, "decode-heavy": 16.0, "hot-prefix": 16.0}
LOOK_S = 5.0


class Timed(msgspec.Struct, frozen=True):
    """One answer as its client saw it, ms."""

    at_s: float
    ttft_ms: float
    itl_ms: float | None


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]


@contextlib.contextmanager
def fleet(cost: str, mode: str, folder: Path) -> Iterator[Started]:
    """Start mockers and a router; kill them at the end."""
    ports = free_ports(3 * ENGINES + 1)
    started: list[Started] = []
    with contextlib.ExitStack() as stack:
        for number in range(ENGINES):
            port, events, replay = ports[3 * number : 3 * number + 3]
            arguments = ["kvmesh", "mocker", "--http-port", str(port)]
            arguments += ["--kv-events-port", str(events), "--kv-replay-port", str(replay)]
            one = Started(arguments, port, folder / f"engine-{number}.log")
            stack.callback(one.kill)
            started.append(one)
        for one in started:
            one.wait(lambda process: bool(process.ask("/v1/models")))
        arguments = ["kvmesh", "router", "--http-port", str(ports[-1]), "--kv-cost", cost]
        for one in started:
            arguments += ["--worker", f"http://127.0.0.1:{one.port}"]
        arguments += ["--auto-tune", mode]
        router = Started(arguments, ports[-1], folder / "router.log")
        stack.callback(router.kill)
        router.wait(lambda process: bool(process.ask("/ready").get("ready")))
        yield router


def prompt_of(request: TraceRequest) -> str:
    """Return a text of as many bytes as the request has tokens; equal blocks are equal text."""
    return "".join(f"{block:x} {random.Random(block).random()!r} ".ljust(BLOCK, ".")[:BLOCK]
                   for block in request.block_ids)  # fmt: skip


async def ask(client: httpx.AsyncClient, model: str, request: TraceRequest) -> Timed | None:
    """Stream one answer; None: it failed."""
    body = {
        "model": model,
        "prompt": prompt_of(request),
        "max_tokens": request.output_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began, first, tokens, last = time.perf_counter(), None, 0, 0.0
    try:
        async for line in lines_of(client, body):
            if line.startswith("data: {") and '"text"' in line:
                last = time.perf_counter()
                first = first or last
                tokens += 1
    except httpx.HTTPError:
        return None
    if first is None:
        return None
    itl_ms = (last - first) * 1000.0 / (tokens - 1) if tokens > 1 else None
    return Timed(began, (first - began) * 1000.0, itl_ms)


async def lines_of(client: httpx.AsyncClient, body: dict[str, Any]) -> AsyncIterator[str]:
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            yield line


async def take_proposals(client: httpx.AsyncClient, cost: str) -> None:
    """Put each proposal on trial, once."""
    taken = ""
    while True:
        await asyncio.sleep(LOOK_S)
        tuning = (await client.get("/v1/status")).json().get("tuning") or {}
        proposal = tuning.get("tuner", {}).get("proposal", "")
        if proposal and proposal != taken:
            taken = proposal
            named = proposal.removeprefix(f"kv:{cost}:").split(":")
            weights = {name: float(value) for name, value in (one.split("=") for one in named)}
            answer = await client.put("/admin/policy", json={"formula": cost, "weights": weights})
            print(f"PUT /admin/policy {proposal}: {answer.status_code}")


async def play(
    url: str, cost: str, model: str, phase: str, load: tuple[float, float]
) -> list[Timed]:
    """Send a phase at its rate, whatever is open; return what was answered."""
    seconds, rate = load
    requests = PHASES[phase](round(rate * seconds), rate, 5)
    limits = httpx.Limits(max_connections=2000, max_keepalive_connections=200)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        taking = asyncio.ensure_future(take_proposals(client, cost))
        begin, asked = time.perf_counter(), []
        for request in requests:
            wait_s = begin + request.timestamp_ms / 1000.0 - time.perf_counter()
            await asyncio.sleep(max(0.0, wait_s))
            asked.append(asyncio.ensure_future(ask(client, model, request)))
        answers = await asyncio.gather(*asked)
        taking.cancel()
    failed = sum(one is None for one in answers)
    if failed:
        print(f"{phase}: {failed} of {len(answers)} failed")
    return [one for one in answers if one is not None]


def run(
    cost: str, mode: str, seconds: float, speed: float, phases: Sequence[str]
) -> dict[str, tuple[float, float, str]]:
    """Return p90 TTFT and time per token of each phase's end, and the weights then in force."""
    found: dict[str, tuple[float, float, str]] = {}
    with tempfile.TemporaryDirectory() as name, fleet(cost, mode, Path(name)) as router:
        url = f"http://127.0.0.1:{router.port}"
        model = router.ask("/v1/models")["data"][0]["id"]
        for phase in phases:
            timed = sorted(
                asyncio.run(play(url, cost, model, phase, (seconds, RATES[phase] * speed))),
                key=lambda one: one.at_s,
            )
            steady = timed[round(STEADY_FROM * len(timed)) :]
            ttft = quantile([one.ttft_ms for one in steady], 0.9) or 0.0
            itl = quantile([one.itl_ms for one in steady if one.itl_ms is not None], 0.9) or 0.0
            found[phase] = (ttft, itl, str(router.ask("/admin/policy")["weights"]))
        for line in router.log().splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if entry.get("event") in ("auto-tune", "policy changes"):
                    reported = entry.get("text") or f"{entry['candidate']} {entry['share']:.0%}"
                    print(f"{entry['timestamp'][11:19]}  {entry.get('step', 'policy')}: {reported}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cost", default="prefill-decode")
    parser.add_argument("--seconds", type=float, default=600.0, help="of each phase")
    parser.add_argument("--speed", type=float, default=1.0, help="times the usual rates")
    parser.add_argument("--phase", action="append", choices=list(PHASES), help="default: all")
    parser.add_argument("--compare", action="store_true", help="play it without the tuner, too")
    options = parser.parse_args()
    load = options.seconds, options.speed, options.phase or list(PHASES)
    tuned = run(options.cost, "propose", *load)
    plain = run(options.cost, "off", *load) if options.compare else {}
    for phase, (ttft, itl, weights) in tuned.items():
        line = f"{phase}: p90 TTFT {ttft:.0f} ms, per token {itl:.1f} ms by {weights}"
        if phase in plain:
            before = plain[phase]
            ratio = score_of(ttft, itl) / score_of(before[0], before[1])
            line += f"; default {before[0]:.0f} ms, {before[1]:.1f} ms; score {ratio:.3f}"
        print(line)


if __name__ == "__main__":
    main()
