"""Engines, a mesh and a router alone over them, and the rows of the report."""

import asyncio
import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec

from kvmesh.app.ops.doctor import DoctorSettings, examine
from kvmesh.core.engines.seen import Finding
from tests.engines.engine import Engine
from tests.engines.forms import FORMS, Form, Material
from tests.engines.mesh import EngineMesh
from tests.engines.reuse.alone import RouterAlone
from tests.engines.reuse.report import Report
from tests.engines.tiny_model import VOCABULARY
from tests.engines.traffic import (
    Comparison,
    Routers,
    Traffic,
    ask,
    compare,
    exact_share,
    mean_error,
    share_within,
    table_row,
)


class Plan(msgspec.Struct):
    """What to run: `engines` of one kind, called so in tables.

    `workers` are the names the engines' sidecars give themselves. After enough requests each holds
    `held` blocks, at least and at most. `engine_kind` is that of `Form.engines`, and of routers'
    `--tokenizer-engine`.
    """

    kind: str
    engines: dict[str, Engine]
    workers: list[str]
    model: Path
    block_size: int
    held: tuple[int, int]
    engine_kind: str = "vllm"

    def options(self) -> list[str]:
        """Return how routers make token ids and blocks as these engines do."""
        model = ("--tokenizer", str(self.model), "--tokenizer-engine", self.engine_kind)
        return [*model, "--kv-cache-block-size", str(self.block_size)]


class Stack(msgspec.Struct):
    """All that runs. The router alone does not until it is started."""

    plan: Plan
    mesh: EngineMesh
    alone: RouterAlone
    traffic: Traffic
    material: Material
    report: Report

    def measure(self, name: str, count: int, routers: Routers | None = None) -> float:
        """Return the share of exact predictions of `count` requests, and report it."""
        made = self._compare(routers or self.mesh, count)
        for number, one in enumerate(made):
            if one.predicted != one.cached:
                print(f"{name}: request {number} was {one}")  # noqa: T201 - to look into
        self.report.add("runs", f"| {self.plan.kind} {table_row(name, made)}")
        return exact_share(made)

    def measure_in_flight(self, count: int, in_flight: int) -> list[Comparison]:
        """Return what came of `count` requests, so many at a time, and report it."""
        made = self._compare(self.mesh, count, in_flight)
        within = share_within(made, self.plan.block_size)
        self.report.add(
            "in flight",
            f"| {self.plan.kind} | {in_flight} | {count} | {exact_share(made):.1%} "
            f"| {within:.1%} | {mean_error(made):.0f} |",
        )
        return made

    def forms(self) -> list[Form]:
        """Return the forms that the engines take."""
        return [form for form in FORMS if self.plan.engine_kind in form.engines]

    def measure_form(self, form: Form, count: int) -> str:
        """Send `count` requests of a form one by one, report them; return what is wrong, or ""."""
        made: list[Comparison] = []
        for number in range(count):
            body = form.body(self.material)
            self.mesh.settle()
            if form.refused:
                status = self._status_of(form, body, number)
                if not 400 <= status < 500:
                    return f"{form.name}: {status}"
                continue
            sent = (form.name, form.path, body)
            made.append(ask(self.mesh, number, sent, self.plan.block_size))
        said = {one.unforeseen for one in made} or {form.left_out}
        foretold = [one for one in made if not one.unforeseen]
        exact = f"{exact_share(foretold):.0%}" if foretold else "refused" if form.refused else "-"
        reused = sum(one.cached for one in made) / max(1, sum(one.prompt for one in made))
        self.report.add(
            "forms",
            f"| {form.name} | {self.plan.kind} | {count} | {exact} | {reused:.0%} "
            f"| {', '.join(sorted(said))} |",
        )
        wrong = [(one.predicted, one.cached) for one in foretold if one.predicted != one.cached]
        if wrong or said != {form.left_out}:
            return f"{form.name}: predicted and reused {wrong}, left out {sorted(said)}"
        return ""

    def _status_of(self, form: Form, body: dict[str, Any], number: int) -> int:
        router = self.mesh.router_urls[number % 2]
        return self.mesh.http.post(f"{router}{form.path}", json=body).status_code

    def examine(self, worker: str) -> list[Finding]:
        """Return what the doctor finds."""
        settings = DoctorSettings(
            engine_url=self.plan.engines[worker].url,
            router_url=self.mesh.router_urls[1],
            tokenizer=self.plan.model,
        )
        return asyncio.run(examine(settings))

    def _compare(self, routers: Routers, count: int, in_flight: int = 1) -> list[Comparison]:
        return compare(routers, self.traffic, count, self.plan.block_size, in_flight)


@contextlib.contextmanager
def running(directory: Path, plan: Plan, report: Report) -> Generator[Stack]:
    """Start engines and mesh, wait until the replicas trust the workers."""
    urls = {name: engine.url for name, engine in plan.engines.items()}
    mesh = EngineMesh(directory, urls, plan.options())
    alone = RouterAlone(directory, urls, plan.options())
    try:
        for engine in plan.engines.values():
            engine.start()
        for engine in plan.engines.values():
            engine.wait()
        mesh.start()
        mesh.wait_for_trust(plan.workers)
        traffic = Traffic(1, plan.block_size, VOCABULARY)
        yield Stack(plan, mesh, alone, traffic, Material(1, VOCABULARY), report)
    finally:
        alone.stop()
        mesh.stop()
        for engine in plan.engines.values():
            engine.stop()
