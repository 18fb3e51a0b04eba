"""Engines and a mesh over them, and the rows of the report."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvmesh.core.engines.diagnosis import Finding
from kvmesh.doctor.command import DoctorSettings, examine
from tests.engines.engine import Engine
from tests.engines.mesh import EngineMesh
from tests.engines.tiny_model import VOCABULARY
from tests.engines.traffic import Traffic, compare, exact_share, table_row


class Plan(msgspec.Struct):
    """What to run: `engines` of one kind (its name with version), each of `blocks` at most.

    `workers` are the names the engines' sidecars give themselves.
    """

    kind: str
    engines: dict[str, Engine]
    workers: list[str]
    model: Path
    block_size: int
    blocks: int


class Stack(msgspec.Struct):
    """All that runs."""

    plan: Plan
    mesh: EngineMesh
    traffic: Traffic
    rows: list[str]

    def measure(self, name: str, count: int) -> float:
        """Return the share of exact predictions of `count` requests, and report it."""
        made = compare(self.mesh, self.traffic, count, self.plan.block_size)
        self.rows.append(f"| {self.plan.kind} {table_row(name, made)}")
        return exact_share(made)

    def examine(self, worker: str) -> list[Finding]:
        """Return what the doctor finds."""
        settings = DoctorSettings(
            engine_url=self.plan.engines[worker].url,
            router_url=self.mesh.router_urls[1],
            tokenizer=self.plan.model,
        )
        return asyncio.run(examine(settings))


@contextlib.contextmanager
def running(directory: Path, plan: Plan, rows: list[str]) -> Iterator[Stack]:
    """Start all of it, wait until the replicas trust the workers; add to the report's `rows`."""
    urls = {name: engine.url for name, engine in plan.engines.items()}
    mesh = EngineMesh(directory, urls, plan.model, block_size=plan.block_size)
    try:
        for engine in plan.engines.values():
            engine.start()
        for engine in plan.engines.values():
            engine.wait()
        mesh.start()
        mesh.wait_for_trust(plan.workers)
        yield Stack(plan, mesh, Traffic(1, plan.block_size, VOCABULARY), rows)
    finally:
        mesh.stop()
        for engine in plan.engines.values():
            engine.stop()
