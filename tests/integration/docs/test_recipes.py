"""Recipes of CONTRIBUTING.md, for a new term and a new wish, followed in a copy of this tree.

Nothing but what they name is changed, and the term is there wherever terms are, the wish obeyed.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
ROW: Final = '    "blank_blocks": Term("blocks", "that hold nothing", "state->blank_blocks"),\n'
FIELD: Final = "    blank_blocks: int = 0\n"
BEFORE_ROW: Final = '    "adapter_ms": Term('
BEFORE_FIELD: Final = "    adapter_ms: float = 0.0\n"

PROGRAM: Final = """
from kvmesh.core.cost.expression import Expression
from kvmesh.core.cost.formulas import make_cost
from kvmesh.core.cost.program import compile_formula
from kvmesh.core.insight.explain import view_decision
from tests.unit.core.routing.test_fetching import Fleet

fleet = Fleet()
held = {"a": 100, "b": 70, "c": 1}
for worker, blocks in held.items():
    fleet.scheduler.workers.state(worker).blank_blocks = blocks
decision = fleet.scheduler.explain(fleet.request(), 0.0)
view = view_decision(decision, router="r", bucket="b")
assert {one.worker: one.blank_blocks for one in view.candidates} == held
assert compile_formula(make_cost("own", Expression("blank_blocks"), Expression("1"))) is not None
"""

IN_BODY: Final = "    tolerations: Names = ()\n"
WISHED_BEFORE: Final = "    tolerations: frozenset[str] = frozenset()\n"
RESTRICTS: Final = "self.labels, self.tolerations\n"
LACKING: Final = "        if not self.labels <= info.labels:\n"
MISSED: Final = """        if self.zones and not self.zones & info.labels:
            return f"in none of {_listed(self.zones)}"
"""
WISH: Final = {
    "kvmesh/core/chat/inference.py": [(IN_BODY, "    zones: Names = ()\n" + IN_BODY)],
    "kvmesh/core/routing/decision.py": [
        (WISHED_BEFORE, WISHED_BEFORE + WISHED_BEFORE.replace("tolerations", "zones")),
        (RESTRICTS, RESTRICTS.replace("\n", ", self.zones\n")),
        (LACKING, MISSED + LACKING),
    ],
}
"""A wish for one of several zones: what is replaced, by file."""

WISHED: Final = """
import msgspec
from kvmesh.app.prompts.request_wishes import WishOptions, WishReader
from kvmesh.core.members.worker_info import WorkerInfo
from kvmesh.core.routing.model_policy import ModelPolicies
from kvmesh.errors import RequestError
from kvmesh.transport.http.openai import find_endpoint, parse_request
from kvmesh.transport.http.server.request import Request
from tests.unit.core.routing.test_fetching import Fleet

fleet = Fleet()
for worker, zone in {"a": "north", "b": "south", "c": "east"}.items():
    fleet.scheduler.workers.describe(worker, WorkerInfo(labels=frozenset({zone})))
PATH = "/v1/chat/completions"
chat = find_endpoint("POST", PATH, passthrough=True)
body = parse_request(b'{"messages":[],"kvmesh":{"zones":["south"]}}', chat)
read = WishReader(WishOptions(), ModelPolicies(())).read
by_header = read(Request("POST", PATH.encode(), [(b"x-kvmesh-zones", b"east, south")]))
by_body = read(Request("POST", PATH.encode(), []), body)
for wishes, there in ((by_header, ("b", "c")), (by_body, ("b",))):
    request = wishes.request("")
    assert fleet.scheduler.workers.eligible(request, 0.0) == there
    states = fleet.scheduler.workers.wished(request, 0.0)
    assert tuple(state.worker for state in states) == there
    assert fleet.scheduler.explain(
        msgspec.structs.replace(fleet.request(), zones=wishes.zones), 0.0
    ).worker in there
try:
    read(Request("POST", PATH.encode(), [(b"x-kvmesh-zones", b"\\x01")]))
except RequestError as error:
    assert "x-kvmesh-zones" in str(error)
else:
    raise AssertionError("a bad name is taken")
"""


def copied(tree: Path) -> Path:
    """Return a copy of what the recipes change, and of the compiled core."""
    tree.mkdir()
    for name in ("kvmesh", "tests", "docs"):
        ignored = shutil.ignore_patterns("__pycache__", "_native*.so", "golden", "fuzz")
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    (core,) = (ROOT / "kvmesh").glob("_native*.so")
    shutil.copy(core, tree / "kvmesh")
    return tree


def run_in(tree: Path, *arguments: str) -> None:
    """Run Python there, on what is there."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    subprocess.run([sys.executable, *arguments], cwd=tree, env=environment, check=True)


def compile_core(tree: Path) -> None:
    """Compile the core of a tree, as quickly as that can be done."""
    native = tree / "kvmesh/native"
    flags = ["-O0", "-fPIC", f"-I{sysconfig.get_path('include')}", f"-I{native}"]

    def compiled(source: Path) -> Path:
        made = source.with_suffix(".o")
        subprocess.run(["cc", "-c", *flags, str(source), "-o", str(made)], check=True)
        return made

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, sorted(native.rglob("*.c"))))
    core = tree / f"kvmesh/_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run(["cc", "-shared", *map(str, objects), "-o", str(core)], check=True)


@pytest.mark.nightly
def test_a_new_term_is_two_lines_of_one_file(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler here")
    tree = copied(tmp_path / "tree")
    terms = tree / "kvmesh/core/cost/terms.py"
    text = terms.read_text()
    assert text.count(BEFORE_ROW) == text.count(BEFORE_FIELD) == 1
    text = text.replace(BEFORE_ROW, ROW + BEFORE_ROW)
    terms.write_text(text.replace(BEFORE_FIELD, FIELD + BEFORE_FIELD))
    run_in(tree, "-m", "tests.integration.docs.terms_table")
    compile_core(tree)
    run_in(tree, "-c", PROGRAM)

    assert (
        "| `blank_blocks` | blocks | that hold nothing |"
        in (tree / "docs/operate/tuning.md").read_text()
    )


def test_a_new_wish_is_a_field_in_each_of_two_files(tmp_path: Path) -> None:
    tree = copied(tmp_path / "tree")
    for name, changes in WISH.items():
        text = (tree / name).read_text()
        for before, after in changes:
            assert text.count(before) == 1
            text = text.replace(before, after)
        (tree / name).write_text(text)

    run_in(tree, "-c", WISHED)
