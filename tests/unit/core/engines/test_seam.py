"""Kinds of engines are known to the registry and to their own folders; all else asks the seam."""

import re
from pathlib import Path

import pytest

from benchmarks.house.tree import PACKAGES
from kvmesh.core.engines.registry import ENGINES

ROOT = Path(__file__).parents[4]
SEAM = ROOT / "kvmesh" / "core" / "engines"
REGISTRY = SEAM / "registry.py"
KINDS = sorted(path.parent for path in SEAM.glob("*/engine.py"))

MAY_NAME = {
    # Texts that users read: help of flags, and remedies for what only one kind needs.
    "benchmarks/lab/kvmesh_lab/replay/command.py": "a remedy",
    "benchmarks/lab/kvmesh_lab/replay/options.py": "help",
    "benchmarks/lab/kvmesh_lab/report/table.py": "a remedy",
    "kvmesh/settings/requests.py": "help",
    "kvmesh/settings/roles.py": "help",
    # Where a rule was taken from.
    "kvmesh/core/chat/chat.py": "source",
    "kvmesh/core/members/late_prompts.py": "source",
    "kvmesh/app/views/other_names.py": "names of metrics",
    "kvmesh/core/chat/media.py": "source",
    "kvmesh/core/admission/paths.py": "source",
    "kvmesh/core/chat/template_format.py": "source",
    "benchmarks/lab/kvmesh_lab/simulator/model_profiles.py": "source",
    "kvmesh/core/engines/kv_events/dialect_fields.py": "the common dialect",
    "kvmesh/core/engines/kv_events/envelope.py": "the common dialect",
    "kvmesh/core/engines/kv_events/dialect.py": "source",
    "kvmesh/core/engines/kv_events/event_source.py": "source",
    # What the mocker, which pretends to be an engine of one kind, is made of.
    "benchmarks/lab/kvmesh_lab/mocker": "a pretend engine",
    "benchmarks/lab/kvmesh_lab/conformance/gateway_endpoints.py": "a pretend engine",
    # The published cost formula of that name.
    "kvmesh/core/cost/formulas.py": "formula",
    "kvmesh/core/cost/weight_sets.py": "formula",
    "benchmarks/lab/kvmesh_lab/simulator/options.py": "formula",
    "benchmarks/lab/kvmesh_lab/simulator/tuning.py": "formula",
}
"""Modules (and folders) outside the kinds' own that may name a kind; a new one needs a reason."""


def modules(*under: Path) -> dict[str, str]:
    """Return the text of every module, by path."""
    found = (path for folder in under for path in folder.rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in found}


def test_each_folder_of_a_kind_is_registered_under_its_name() -> None:
    assert sorted(ENGINES) == [folder.name for folder in KINDS]


def test_no_other_module_names_a_kind() -> None:
    names = re.compile("|".join(ENGINES), re.IGNORECASE)
    own = {path for folder in KINDS for path in modules(folder)} | {
        REGISTRY.relative_to(ROOT).as_posix()
    }
    found = {path for path, text in modules(*PACKAGES).items() if names.search(text)} - own

    unlisted = {path for path in found if not any(path.startswith(one) for one in MAY_NAME)}
    assert not unlisted, "ask `engine_of(kind)`, or put what differs into `Engine`"
    gone = {one for one in MAY_NAME if not any(path.startswith(one) for path in found)}
    assert not gone, "these name no kind any more: take them out of the list"


@pytest.mark.parametrize("kind", KINDS, ids=lambda folder: str(folder.name))
def test_only_the_registry_imports_a_kind(kind: Path) -> None:
    name = f"kvmesh.core.engines.{kind.name}"
    found = {
        path
        for path, text in modules(*PACKAGES).items()
        if re.search(rf"^\s*(from|import) {re.escape(name)}\b", text, re.MULTILINE)
    }

    assert found - set(modules(kind)) == {REGISTRY.relative_to(ROOT).as_posix()}
