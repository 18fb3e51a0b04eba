"""`kvmesh doctor`: says in words why an engine's cache would not be seen, and what to do."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from rich.console import Console
from rich.text import Text

from kvmesh.app.ops.doctor_probe import Inspection, probe_engine, probe_router
from kvmesh.app.ops.doctor_router import check_router
from kvmesh.app.process.running import Stop, first_of, run
from kvmesh.app.process.running_mesh import find_mesh, find_meshes, look_up
from kvmesh.app.prompts.tokenizer import TokenizerOptions, load_tokenizer
from kvmesh.core.engines.diagnosis import check_engine
from kvmesh.core.engines.facts import base_of
from kvmesh.core.engines.seen import Finding, Level
from kvmesh.errors import ConfigError
from kvmesh.observe import configure_logging
from kvmesh.settings.types import Flat
from kvmesh.transport.http.upstream.client import UpstreamPool

STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


@dataclass(frozen=True, kw_only=True)
class DoctorSettings:
    """`kvmesh doctor`: what to look at."""

    engine_url: str = ""
    """Base URL of the engine's OpenAI server, as its sidecar gets it, with or without /v1; default:
    every engine of a running `kvmesh up`."""
    router_url: str = ""
    """A router that should know this engine: then the way from engine to index is tried too;
    default: the one of a running `kvmesh up` with that engine."""
    tokenizer: Path | None = None
    """Model directory to compare with the engine's token ids."""
    kv_events_endpoint: str = ""
    """The engine's KV event publisher (rank 0's, rank r adds r); default: asked of the engine."""
    kv_replay_endpoint: str = ""
    """Its replay socket, beside --kv-events-endpoint."""
    kv_events_topic: str = ""
    """Topic prefix to take; empty takes all."""
    kv_events_bind: bool = False
    """Bind the event socket instead of connecting; stop the sidecar for it."""
    probe: bool = True
    """Send the engine a prompt of four blocks, twice; --no-probe only looks."""


async def examine(settings: DoctorSettings) -> list[Finding]:
    """Return what was found. Raises `ConfigError` for settings that cannot be meant."""
    for flag, url in (("--engine-url", settings.engine_url), ("--router-url", settings.router_url)):
        parts = urlsplit(url)
        if url and (parts.scheme not in {"http", "https"} or not parts.hostname):
            raise ConfigError(f"{flag} {url!r}: write http://host:port")
    tokenizer = None
    if settings.tokenizer is not None:
        tokenizer = load_tokenizer(str(settings.tokenizer), options=TokenizerOptions())
    inspection = Inspection(
        engine_url=base_of(settings.engine_url),
        endpoint=settings.kv_events_endpoint,
        replay=settings.kv_replay_endpoint,
        topic=settings.kv_events_topic,
        bind=settings.kv_events_bind,
        tokenizer=tokenizer,
        probe=settings.probe,
    )
    pool = UpstreamPool()
    try:
        engine, chat = await probe_engine(pool, inspection)
        findings = check_engine(engine)
        if settings.router_url and engine.answers:
            router = await probe_router(pool, base_of(settings.router_url), engine, chat)
            findings += check_router(router, engine)
    finally:
        await pool.close()
    return findings


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """Write a line each, with the remedy behind what is not right."""
    for finding in findings:
        line = Text(f"{finding.level.value:4}", style=STYLES[finding.level])
        line.append(f"  {finding.topic}: {finding.text}", style="default not bold")
        if finding.remedy:
            line.append(f" -> {finding.remedy}", style="default not bold")
        console.print(line, soft_wrap=True)


def find_patients(settings: DoctorSettings) -> list[DoctorSettings]:
    """Return what is to be looked at, an engine each: the one that is named, else all engines of a
    running `kvmesh up`, with their routers. Raises `ConfigError` where there is none.
    """
    if settings.engine_url:
        base = base_of(settings.engine_url)
        place = None if settings.router_url else look_up(base, find_meshes())
        return [settings if place is None else replace(settings, router_url=place.router_url)]
    mesh = find_mesh("--engine-url")
    if mesh is None:
        raise ConfigError(
            "no kvmesh up runs here: name an engine with --engine-url http://HOST:PORT"
        )
    return [
        replace(settings, engine_url=one.url, router_url=settings.router_url or one.router_url)
        for one in mesh.engines
    ]


def command(*, settings: Annotated[DoctorSettings, Flat] | None = None) -> None:
    """Say why an engine's KV cache would not be seen, and what to do; 1 when something is."""
    configure_logging("error", "auto", role="doctor")
    patients = find_patients(settings or DoctorSettings())
    findings: list[list[Finding]] = []

    async def main(stop: Stop) -> None:
        async def inspection() -> None:
            findings.extend([await examine(patient) for patient in patients])

        await first_of(stop.wait(), inspection())

    run(main)
    console = Console()
    for patient, found in zip(patients, findings, strict=False):
        if len(patients) > 1:
            console.print(Text(f"{patient.engine_url} ({patient.router_url})", "bold"))
        print_findings(found, console)
    if any(finding.level is Level.FAIL for found in findings for finding in found):
        sys.exit(1)
