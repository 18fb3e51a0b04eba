"""`kvmesh demo`: runs the demonstrations against a mesh, prints what is promised and measured."""

import secrets
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Final, Never
from urllib.parse import urlsplit

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

from kvmesh.app.process.running import Stop, first_of, run
from kvmesh.app.views.ask import ask_overview
from kvmesh.bounds import counted
from kvmesh.core.buckets.placing import BucketPolicy
from kvmesh.errors import ConfigError
from kvmesh.observe import configure_logging
from kvmesh.settings.roles import MetaRouterSettings, UpSettings
from kvmesh.settings.types import Flat, Positive, Seconds
from kvmesh.transport.http.upstream.client import UpstreamOptions, UpstreamPool
from kvmesh_lab.demo.kill import STREAMS, Round, print_rounds, run_kills
from kvmesh_lab.demo.measures import Measured, measure
from kvmesh_lab.demo.own_mesh import own_mesh
from kvmesh_lab.demo.play import Mesh, Player, read_mesh
from kvmesh_lab.demo.promises import BASELINE, Policy, Scene
from kvmesh_lab.demo.result import DemoReport, Part, exit_code, print_report, write_json
from kvmesh_lab.demo.texts import (
    DEMONSTRATIONS,
    LOADS,
    Demonstration,
    LoadName,
    Size,
    Workload,
    make_workload,
)
from kvmesh_lab.mocker.settings import MockerSettings
from kvmesh_lab.replay.client import ReplayClient
from kvmesh_lab.replay.options import split_commas

POLICIES: Final[tuple[Policy, ...]] = ("round-robin", "random", "kv")
"""In the order they are run."""

PROBE_TEXTS: Final = 3
PROBE_CHARACTERS: Final = 2000
CONNECT_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """What to show. A dataclass, since the command line is made from it."""

    url: str = ""
    """Base URL of a router or meta-router, without /v1; default: starts a mesh of its own."""
    model: str = ""
    """Model to ask for; default: the first that workers serve."""
    api_key: str = ""
    """Sent as bearer token."""
    mode: Annotated[tuple[Policy, ...], Parameter(converter=split_commas)] = POLICIES
    """Router modes to measure, commas between them; changes are counted from round-robin."""
    load: Annotated[tuple[LoadName, ...], Parameter(converter=split_commas)] = LOADS
    """printed: the texts of the demonstrations as printed. light: larger ones, a request at a time.
    full: 16 requests a worker at a time."""
    scale: Annotated[float, Parameter(validator=Number(gt=0.0, lte=100.0))] = 1.0
    """How many requests light and full load send: 0.1 is a tenth, and says little."""
    timeout_s: Seconds = 120.0
    """Seconds until an answer counts as failed."""
    kill: bool = False
    """In place of all that: kill -9 engines and a router of the own mesh in the middle of streams,
    and compare these with undisturbed ones. --load, --mode and --url do not count."""
    json: bool = False
    """Print everything as JSON instead of tables."""
    engines: Positive = UpSettings.engines
    """Own mesh: simulated engines."""
    buckets: str = UpSettings.buckets
    """Own mesh: names of the buckets, commas between them."""
    replicas: Positive = UpSettings.replicas
    """Own mesh: router replicas of each bucket."""
    bucket_policy: BucketPolicy = MetaRouterSettings.bucket_policy
    """Own mesh: the meta-router's, for requests that name no bucket."""
    timing_profile: str = UpSettings.timing_profile
    """Own mesh: timing of the simulated engines, by name."""
    speedup_ratio: Seconds = 0.5
    """Own mesh: how much faster than life the simulated engines run. Below 1, what routers, engines
    and clients cost the processors that they share here weighs less beside the engines' time."""


def check_settings(settings: DemoSettings) -> None:
    """Raise `ConfigError` for what cannot be meant."""
    for flag, chosen, known in (
        ("--mode", settings.mode, POLICIES),
        ("--load", settings.load, LOADS),
    ):
        wrong = [word for word in chosen if word not in known]
        if wrong or not chosen:
            raise ConfigError(f"{flag} {','.join(wrong)!r}: name some of {', '.join(known)}")
    parts = urlsplit(settings.url)
    if settings.url and (parts.scheme not in {"http", "https"} or not parts.hostname):
        raise ConfigError(f"--url {settings.url!r}: write http://host:port")


@asynccontextmanager
async def _mesh(settings: DemoSettings) -> AsyncGenerator[str]:
    if settings.url:
        yield settings.url.rstrip("/").removesuffix("/v1")
        return
    up = UpSettings(
        engines=settings.engines,
        buckets=settings.buckets,
        replicas=settings.replicas,
        bucket_policy=settings.bucket_policy,
        timing_profile=settings.timing_profile,
        speedup_ratio=settings.speedup_ratio,
    )
    async with own_mesh(up) as (url, _):
        yield url


async def run_demo(settings: DemoSettings, console: Console) -> DemoReport:
    """Run what `settings` name and return what was measured; progress is shown on `console`.

    Raises `ConfigError`, and `TransportError` when the mesh does not answer at the start.
    """
    check_settings(settings)
    if not settings.url:
        console.print(f"starting a mesh of {counted(settings.engines, 'simulated engine')} …")
    options = UpstreamOptions(
        connect_timeout_s=CONNECT_TIMEOUT_S,
        first_byte_timeout_s=settings.timeout_s,
        idle_timeout_s=settings.timeout_s,
    )
    async with _mesh(settings) as url:
        mesh = read_mesh(await ask_overview(url, api_key=settings.api_key), settings.model)
        pool = UpstreamPool(options=options)
        try:
            client = ReplayClient(pool, url, settings.timeout_s)
            return await _Run(settings, client, mesh, console).all(url)
        finally:
            await pool.close()


class _Run:
    """One run over a mesh. `id` is in every prompt, so that no earlier run's caches count."""

    def __init__(
        self, settings: DemoSettings, client: ReplayClient, mesh: Mesh, console: Console
    ) -> None:
        self._settings = settings
        self._client = client
        self._mesh = mesh
        self._console = console
        self._id = secrets.token_hex(3)
        self._player = Player(client, mesh, settings.api_key, self._id)

    async def all(self, url: str) -> DemoReport:
        """Play every demonstration at every load."""
        await self._learn_characters()
        parts = [
            await self._part(demonstration, load)
            for load in LOADS
            for demonstration in DEMONSTRATIONS
            if load in self._settings.load
        ]
        mesh = self._mesh
        where = (
            url
            if self._settings.url
            else (
                f"own mesh: {counted(len(mesh.workers), 'simulated engine')} "
                f"({self._settings.timing_profile}, "
                f"speed {self._settings.speedup_ratio:g}), buckets {self._settings.buckets}, "
                f"{counted(self._settings.replicas, 'router')} each, one meta-router"
            )
        )
        return DemoReport(where=where, model=mesh.model, workers=list(mesh.workers), parts=parts)

    async def _learn_characters(self) -> None:
        text = self._workload("load spread", "light", "x").dialogues[0].turns[0]
        characters = await self._player.characters_a_token(text[:PROBE_CHARACTERS])
        mesh = self._mesh
        self._mesh = Mesh(mesh.model, mesh.workers, mesh.buckets, mesh.block_size, characters)
        self._player = Player(self._client, self._mesh, self._settings.api_key, self._id)

    def _workload(self, demonstration: Demonstration, load: LoadName, mark: str) -> Workload:
        size = Size(len(self._mesh.workers), self._mesh.characters, self._settings.scale)
        return make_workload(demonstration, load, f"{self._id}{mark}", size)

    async def _part(self, demonstration: Demonstration, load: LoadName) -> Part:
        passes: dict[str, Measured] = {}
        errors: list[str] = []
        workload = self._workload(demonstration, load, "")
        for use, policy in enumerate(POLICIES):
            if policy not in self._settings.mode:
                continue
            self._console.print(f"{demonstration}, {load}, {policy} …", highlight=False)
            workload = self._workload(demonstration, load, _mark(demonstration, load, use))
            answers, window = await self._player.play(workload, policy)
            errors += [f"{policy}: {one.error}" for one in answers if one.error][:1]
            passes[policy] = measure(
                answers, self._mesh.workers, window, follow_ups=demonstration == "multi-turn"
            )
        scene = Scene(
            demonstration=demonstration,
            load=load,
            lanes=min(workload.lanes, len(workload.dialogues)),
            dialogues=len(workload.dialogues),
            savable_ttft=await self._savable(demonstration, load),
            passes=passes,
        )
        return Part.of(scene, errors)

    async def _savable(self, demonstration: Demonstration, load: LoadName) -> float:
        """Measure what a cached prompt of this demonstration's length saves, with fresh prompts."""
        if demonstration == "load spread" or BASELINE not in self._settings.mode:
            return 0.0
        texts: list[str] = []
        for number in range(PROBE_TEXTS):
            mark = _mark(demonstration, load, len(POLICIES) + number)
            one = self._workload(demonstration, load, mark).dialogues[0]
            texts.append(f"{self._id}{mark} {one.system} {one.turns[0]}")
        return await self._player.savable_ttft(texts)


def _mark(demonstration: Demonstration, load: LoadName, use: int) -> str:
    """Return what keeps one pass's prompts apart from those of all others of a run."""
    return f"{load[0]}{DEMONSTRATIONS.index(demonstration)}{use}"


def _show_kills(settings: DemoSettings) -> Never:
    """Kill, print what became of the streams, and exit: 1 when one was not as undisturbed."""
    rounds: list[Round] = []

    async def main(stop: Stop) -> None:
        async def show() -> None:
            up = UpSettings(
                engines=settings.engines, buckets="default", replicas=2, speedup_ratio=1.0
            )
            rounds.extend(
                await run_kills(up, settings.model or MockerSettings.model, Console(stderr=True))
            )

        await first_of(stop.wait(), show())

    run(main)
    if not rounds:
        sys.exit(130)
    if settings.json:
        sys.stdout.write(msgspec.json.encode(rounds).decode() + "\n")
    else:
        print_rounds(rounds, Console())
    sys.exit(any(one.equal < STREAMS for one in rounds))


def command(*, settings: Annotated[DemoSettings, Flat] | None = None) -> None:
    """Measure the usual demonstrations of KV routing, beside what is promised; 1 for a miss."""
    options = settings or DemoSettings()
    configure_logging("error", "auto", role="demo")
    if options.kill:
        _show_kills(options)
    reports: list[DemoReport] = []

    async def main(stop: Stop) -> None:
        async def show() -> None:
            reports.append(await run_demo(options, Console(stderr=True)))

        await first_of(stop.wait(), show())

    run(main)
    if not reports:
        sys.exit(130)
    if options.json:
        write_json(reports[0])
    else:
        print_report(reports[0], Console())
    sys.exit(exit_code(reports[0]))


__all__: Sequence[str] = ("DemoSettings", "command", "run_demo")
