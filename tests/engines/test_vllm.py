"""Real, unchanged vLLM under eviction: what routers predict is what the engine reuses.

Run by `make test-engines`, which builds the environment first; the table is in its output.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.engines.mesh import EngineMesh
from tests.engines.processes import free_ports
from tests.engines.tiny_model import VOCABULARY, write_tiny_model
from tests.engines.traffic import Traffic, compare, exact_share, table_row
from tests.engines.vllm_engine import BLOCK_SIZE, VllmEngine
from tests.engines.vllm_venv import venv_directory, vllm_python, why_not_built

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

BLOCKS = 97
"""Of each engine; vLLM keeps one for itself."""

REQUESTS, REQUESTS_AFTER_A_BREAK = 320, 40
GOAL = 0.99
HEADER = """
| vLLM 0.32.0 | requests | exact | too much | too little | tokens reused | with reuse |
|---|---|---|---|---|---|---|"""


class Stack(msgspec.Struct):
    """All that runs, and the rows of the report."""

    engines: dict[str, VllmEngine]
    mesh: EngineMesh
    traffic: Traffic
    rows: list[str]

    def measure(self, name: str, count: int) -> float:
        """Return the share of exact predictions of `count` requests, and report it."""
        made = compare(self.mesh, self.traffic, count, BLOCK_SIZE)
        self.rows.append(table_row(name, made))
        return exact_share(made)


@pytest.fixture(scope="module")
def python(request: pytest.FixtureRequest) -> Path:
    if "engines" not in request.config.getoption("-m"):
        pytest.skip("takes minutes: make test-engines")
    interpreter = vllm_python(venv_directory())
    if interpreter is None:
        pytest.skip(why_not_built(venv_directory()))
    return interpreter


@pytest.fixture(scope="module")
def stack(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("vllm")
    model = write_tiny_model(directory / "tiny")
    ports = free_ports(6)
    engines = {
        f"vllm-{number}": VllmEngine(
            python,
            model,
            (ports[number], ports[2 + number], ports[4 + number]),
            directory / f"vllm-{number}.log",
            blocks=BLOCKS,
        )
        for number in range(2)
    }
    urls = {name: engine.url for name, engine in engines.items()}
    mesh = EngineMesh(directory, urls, model, block_size=BLOCK_SIZE)
    rows: list[str] = []
    try:
        for engine in engines.values():
            engine.start()
        for engine in engines.values():
            engine.wait()
        mesh.start()
        mesh.wait_for_trust(list(engines))
        yield Stack(engines, mesh, Traffic(1, BLOCK_SIZE, VOCABULARY), rows)
    finally:
        mesh.stop()
        for engine in engines.values():
            engine.stop()
        print("\n".join([HEADER, *rows]))  # noqa: T201 - the report is the point


def test_predictions_are_what_vllm_reuses_under_eviction(stack: Stack) -> None:
    share = stack.measure("sequential, under eviction", REQUESTS)

    held = stack.mesh.blocks()
    assert share >= GOAL
    assert held[0] == held[1]
    assert all(BLOCKS // 2 < blocks < BLOCKS for blocks in held[0].values())


def test_a_sidecar_killed_and_started_again_replays_the_engines_history(stack: Stack) -> None:
    before = stack.mesh.blocks()
    sidecar = stack.mesh.sidecars["vllm-0"]

    def restart() -> None:
        sidecar.kill()
        sidecar.start()

    stack.mesh.wait_for_new_epoch("vllm-0", restart)
    stack.mesh.settle()

    assert stack.mesh.blocks() == before
    assert stack.measure("sidecar killed, late join by replay", REQUESTS_AFTER_A_BREAK) >= GOAL


def test_a_router_killed_and_started_again_knows_what_it_knew(stack: Stack) -> None:
    before = stack.mesh.blocks()[1]

    stack.mesh.routers[0].kill()
    stack.mesh.routers[0].start()
    stack.mesh.wait_for_trust(list(stack.engines))
    stack.mesh.settle()

    assert stack.mesh.blocks() == [before, before]
    assert stack.measure("router killed", REQUESTS_AFTER_A_BREAK) >= GOAL


def test_an_engine_killed_and_started_again_holds_nothing(stack: Stack) -> None:
    engine = stack.engines["vllm-1"]

    engine.kill()
    engine.start()
    engine.wait()
    stack.mesh.wait_for_trust(list(stack.engines))

    assert stack.measure("engine killed", REQUESTS_AFTER_A_BREAK) >= GOAL
