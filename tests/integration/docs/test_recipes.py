"""The recipe of CONTRIBUTING.md for a new term, followed in a copy of this tree.

Nothing but what it names is changed, and the term is there wherever terms are.
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
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("kvmesh", "tests", "docs"):
        ignored = shutil.ignore_patterns("__pycache__", "_native*.so", "golden", "fuzz")
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    (core,) = (ROOT / "kvmesh").glob("_native*.so")
    shutil.copy(core, tree / "kvmesh")
    terms = tree / "kvmesh/core/cost/terms.py"
    text = terms.read_text()
    assert text.count(BEFORE_ROW) == text.count(BEFORE_FIELD) == 1
    text = text.replace(BEFORE_ROW, ROW + BEFORE_ROW)
    terms.write_text(text.replace(BEFORE_FIELD, FIELD + BEFORE_FIELD))
    environment = os.environ | {"PYTHONPATH": str(tree)}

    def run(*arguments: str) -> None:
        subprocess.run([sys.executable, *arguments], cwd=tree, env=environment, check=True)

    run("-m", "tests.integration.docs.terms_table")
    compile_core(tree)
    run("-c", PROGRAM)

    assert (
        "| `blank_blocks` | blocks | that hold nothing |"
        in (tree / "docs/operate/tuning.md").read_text()
    )
