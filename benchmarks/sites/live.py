"""Three sites of real processes, 30, 80 and 150 ms apart, beside the same in virtual time.

    python -m benchmarks.sites.live [--faults]

`nearest` is the same mesh, whose clients say that their requests came from a site already. With
--faults the sites are parted, joined again, and one is killed; every request must have its answer.
"""

import argparse
import asyncio
import contextlib
import json
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from statistics import median
from typing import Final
from urllib.parse import urlsplit

import msgspec
import xxhash
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from benchmarks.sites.bench_sites import RTT_MS
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import PROFILES
from kvmesh_lab.report.outcome import percentile
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.sites.comparison import RULES
from kvmesh_lab.simulator.sites.workload import BLOCK, Conversation, Load, Turn, make_conversations
from kvmesh_lab.simulator.sites.world import NAMES, Rule, World, WorldOptions
from tests.integration.support.two_sites import LEAF, Site, SiteLink, until_lost, until_usable

LETTERS: Final = "abcdefghijklmnop"
WORDS: Final = [a + b + c for a in LETTERS for b in LETTERS for c in LETTERS]
LOADS: Final = {"at ease": (0.2, 0.2, 0.2), "skewed": (1.3, 0.1, 0.1)}
"""Conversations a second near each site, of one engine: so few that two cores carry them."""

WARM_S: Final = 30.0
PROFILE: Final = "preble-70b"
SPEED: Final = 0.4
"""Of the engines, in terms of the profile: their time is to be long beside that of processes."""

BLOCKS: Final = 12_000
SEQS: Final = 64


class Told(msgspec.Struct):
    """One request, as its client saw it."""

    home: int
    site: str
    sent_s: float
    ttft_ms: float
    failed: str = ""
    why: str = ""


def write_model(folder: Path) -> Path:
    """Write a model whose tokens are words of four characters, the space among them: what a
    meta-router counts by characters are tokens then.
    """
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=WORDS[0]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for one in messages %}{{ one.content }}{% endfor %}"
    config = {"chat_template": template, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def text(hashes: Sequence[int]) -> str:
    """Return a block of words for each hash."""
    words: list[str] = []
    for one in hashes:
        seed = one
        for _ in range(BLOCK):
            seed = xxhash.xxh3_64_intdigest(seed.to_bytes(8, "little"))
            words.append(WORDS[seed % len(WORDS)])
    return " ".join(words) + " "


def messages(turns: Sequence[Turn]) -> list[dict[str, str]]:
    """Return the chat whose last turn this is: its blocks are those of the virtual one."""
    systems = (20, Load((0,)).system_tokens // BLOCK)
    known = {one.chars // (BLOCK * 4) for one in turns[0].asked.beginnings}
    done = next(blocks for blocks in systems if blocks in known)
    chat = [{"role": "system", "content": text(turns[0].request.hashes[:done])}]
    for turn in turns:
        hashes = turn.request.hashes
        answered = done
        if len(chat) > 1:
            answered += turns[len(chat) // 2 - 1].request.trace.output_tokens // BLOCK
        chat.append({"role": "assistant", "content": text(hashes[done:answered])})
        chat.append({"role": "user", "content": text(hashes[answered:])})
        done = len(hashes)
    return [one for one in chat if one["content"] != " "]


async def ask(url: str, body: bytes, head: str) -> tuple[float, dict[str, str], bytes]:
    """Return when the first token came, s, the head of the answer, and all of it."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    lines = f"host: {place.netloc}\r\ncontent-type: application/json\r\n{head}"
    request = f"POST /v1/chat/completions HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n\r\n"
    writer.write(request.encode() + body)
    answer, first_s = b"", 0.0
    try:
        while b"data: [DONE]" not in answer and b'"error"' not in answer:
            data = await reader.read(1 << 16)
            if not data:
                break
            answer += data
            if not first_s and b'"content"' in answer:
                first_s = time.monotonic()
    finally:
        writer.close()
    top = answer.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    fields = (line.partition(": ") for line in top[1:])
    return first_s, {name.lower(): value for name, _, value in fields} | {"": top[0]}, answer


class Mesh:
    """Three sites, each joined with each other one by links as long as the network is."""

    def __init__(self, folder: Path) -> None:
        model = ("--tokenizer", str(write_model(folder / "model")))
        engine = ("--timing-profile", PROFILE, "--num-gpu-blocks", str(BLOCKS))
        options = (*engine, "--max-num-seqs", str(SEQS), "--speedup-ratio", str(SPEED), *model)
        self.sites = [Site(one, folder, options, (), router=model) for one in NAMES]
        self.doors: dict[tuple[int, int], SiteLink] = {}
        self.leafs: dict[tuple[int, int], SiteLink] = {}
        for here in range(len(NAMES)):
            for there in range(len(NAMES)):
                if here != there:
                    delay_s = RTT_MS[here][there] / 2000.0
                    site = self.sites[there]
                    self.doors[here, there] = SiteLink(site.port, delay_s)
                    if there < here:
                        self.leafs[here, there] = SiteLink(site.leaf_port, delay_s)

    def links(self, place: int | None = None) -> list[SiteLink]:
        """Return the links, or those of one site."""
        every = [*self.doors.items(), *self.leafs.items()]
        return [link for ends, link in every if place is None or place in ends]

    async def start(self) -> None:
        for link in self.links():
            await link.open()
        for here, site in enumerate(self.sites):
            doors = {NAMES[b]: one.port for (a, b), one in self.doors.items() if a == here}
            hubs = {
                NAMES[b]: f"nats-leaf://{NAMES[a]}:{LEAF}@127.0.0.1:{one.port}"
                for (a, b), one in self.leafs.items()
                if a == here
            }
            await site.serve(doors, hubs)
        for one in self.sites:
            for other in NAMES:
                if other != one.name:
                    await until_usable(one, other)

    async def stop(self) -> None:
        for link in self.links():
            await link.close()
        for one in self.sites:
            await one.stop()


@contextlib.asynccontextmanager
async def three_sites() -> AsyncIterator[Mesh]:
    with tempfile.TemporaryDirectory(prefix="kvmesh-sites-") as folder:
        mesh = Mesh(Path(folder))
        try:
            await mesh.start()
            yield mesh
        finally:
            await mesh.stop()


async def converse(
    mesh: Mesh, one: Conversation, began_s: float, told: list[Told], head: str
) -> None:
    """Have one conversation, at the door of its site."""
    await asyncio.sleep(max(0.0, began_s + one.begins_s - time.monotonic()))
    for number, turn in enumerate(one.turns):
        if number:
            await asyncio.sleep(turn.pause_s)
        tokens = turn.request.trace.output_tokens
        chat = messages(one.turns[: number + 1])
        body = {"model": "mock", "stream": True, "max_tokens": tokens, "messages": chat}
        sent_s = time.monotonic()
        first_s, fields, answer = await ask(
            mesh.sites[turn.home].url, msgspec.json.encode(body), head
        )
        failed = "" if b"data: [DONE]" in answer else f"{fields['']} {answer[-200:]!r}"
        why = fields.get("x-kvmesh-site-why", "")
        row = Told(turn.home, fields.get("x-kvmesh-site", ""), sent_s - began_s, 0.0, failed, why)
        row.ttft_ms = ((first_s or time.monotonic()) - sent_s) * 1000.0
        told.append(row)


async def play(load: Load, rule: Rule, seed: int) -> list[Told]:
    """Return what became of a load's requests."""
    head = "x-kvmesh-from-site: nobody\r\n" if rule == "nearest" else ""
    told: list[Told] = []
    async with three_sites() as mesh:
        began_s = time.monotonic()
        every = make_conversations(load, seed)
        await asyncio.gather(*(converse(mesh, one, began_s, told, head) for one in every))
    return told


async def faults(load: Load, seed: int) -> tuple[list[Told], dict[str, float]]:
    """Part site c from the others, join it again, kill b; clients of a and c go on."""
    told: list[Told] = []
    took: dict[str, float] = {}
    async with three_sites() as mesh:
        a, b, c = mesh.sites
        began_s = time.monotonic()
        every = [one for one in make_conversations(load, seed) if one.turns[0].home != 1]
        asked = [asyncio.ensure_future(converse(mesh, one, began_s, told, "")) for one in every]
        await asyncio.sleep(12)
        for link in mesh.links(2):
            link.silent = True
        took["c is cut off"] = await until_lost(a, "c")
        await asyncio.sleep(10)
        for link in mesh.links(2):
            await link.close()
            await link.open()
        await until_usable(a, "c")
        await until_usable(c, "a")
        await asyncio.sleep(10)
        b.kill()
        took["b is dead"] = await until_lost(a, "b")
        await asyncio.gather(*asked)
    return told, took


def virtual(load: Load, rule: Rule, seed: int) -> list[Told]:
    """Return the same in virtual time."""
    engine = EngineOptions(
        timing=PROFILES[PROFILE], num_gpu_blocks=BLOCKS, max_num_seqs=SEQS, speedup_ratio=SPEED
    )
    world = World(
        WorldOptions(FleetOptions(engines=1, engine=engine, seed=seed), RTT_MS), rule, seed
    )
    world.run(make_conversations(load, seed))
    return [Told(one.home, NAMES[one.site], one.sent_s, one.ttft_ms) for one in world.played]


def row(told: Sequence[Told]) -> str:
    kept = [one for one in told if one.sent_s >= WARM_S]
    ttfts = sorted(one.ttft_ms for one in kept)
    away = sum(one.site != NAMES[one.home] for one in kept) / len(kept)
    failed = [one.failed for one in told if one.failed]
    whys = Counter(one.why.partition(":")[0] for one in kept if one.why)
    return (
        f"n {len(kept):4} p50 {median(ttfts):7.0f} p90 {percentile(ttfts, 0.9):8.0f} "
        f"overseas {away:6.1%} failed {len(failed)} {failed[:1]} {dict(whys)}"
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", choices=[*LOADS, "all"], default="all")
    parser.add_argument("--seconds", type=float, default=110.0)
    parser.add_argument("--output-tokens", type=float, default=32.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rules", nargs="+", choices=RULES[::2], default=RULES[::2])
    parser.add_argument("--faults", action="store_true")
    options = parser.parse_args()

    def load_of(name: str) -> Load:
        return Load(LOADS[name], options.seconds, output_tokens=options.output_tokens)

    if options.faults:
        told, took = await faults(load_of("skewed"), options.seed)
        print("faults", row(told), took, dict(Counter(one.site for one in told)), flush=True)
        return
    for name in LOADS:
        if options.load not in (name, "all"):
            continue
        load = load_of(name)
        for rule in options.rules:
            print(name, rule, "virtual", row(virtual(load, rule, options.seed)), flush=True)
            print(name, rule, "live   ", row(await play(load, rule, options.seed)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
