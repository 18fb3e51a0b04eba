"""The documentation says what is true: its commands parse, its quickstart runs, its links lead."""

import asyncio
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvmesh.app.figures.table import render_metrics
from kvmesh.app.ops.config import render_markdown
from kvmesh.cli import app
from tests.integration.mesh.test_mesh import RunningMesh, mesh  # noqa: F401  the fixture is used by name

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"), *(ROOT / "deploy").glob("*.md")],
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
FRONT_DOOR = "http://127.0.0.1:8000"


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    for match in FENCE.finditer(page.read_text()):
        yield match[1], match[2].replace("\\\n", " ")


def kvmesh_lines() -> list[str]:
    lines = [line for page in PAGES for _, text in blocks(page) for line in text.splitlines()]
    return [line.split("#")[0] for line in lines if line.startswith("kvmesh ")]


def mentions() -> list[str]:
    """Return what is said of commands in passing: their flags, perhaps without values."""
    inline = re.compile(r"`(kvmesh [a-z-]+ [^`]*--[^`]*)`")
    return sorted({found for page in PAGES for found in inline.findall(page.read_text())})


def live_lines() -> list[str]:
    pages = [ROOT / "docs/quickstart.md", ROOT / "docs/api.md"]
    return [
        line
        for page in pages
        for kind, text in blocks(page)
        if kind == "sh"
        for line in text.splitlines()
        if line
    ]


@pytest.mark.parametrize("line", kvmesh_lines())
def test_a_command_in_the_docs_is_one(line: str) -> None:
    words = shlex.split(line)[1:]
    if "…" in line or (len(words) > 1 and words[1].isupper()):
        words = [words[0], "--help"]

    app.parse_args(words, exit_on_error=False, print_error=False)


@pytest.mark.parametrize("text", mentions())
def test_a_flag_that_is_mentioned_exists(text: str) -> None:
    _, command, *words = text.split()
    flags = {word.split("=")[0] for word in words if word.startswith("--")}

    known = {name for one in app[command].assemble_argument_collection() for name in one.names}

    assert flags <= known | {"--config", "--help"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [link for link in LINK.findall(page.read_text()) if "://" not in link]

    missing = [link for link in targets if not (page.parent / link).exists()]

    assert missing == []


def test_the_configuration_page_is_what_the_command_prints() -> None:
    page = (ROOT / "docs/configuration.md").read_text()

    assert page == render_markdown(), "run: make config"


def test_the_tables_of_metrics_are_what_the_command_prints() -> None:
    page = (ROOT / "docs/metrics.md").read_text()

    assert page.endswith(f"\n{render_metrics()}"), "run: make config"


@pytest.mark.integration
async def test_what_the_docs_run_live_runs(mesh: RunningMesh) -> None:  # noqa: F811
    assert len(live_lines()) >= 5
    for line in live_lines():
        command = line.replace(FRONT_DOOR, mesh.url).replace("curl ", "curl --fail-with-body ")
        process = await asyncio.create_subprocess_shell(
            command.replace("kvmesh ", f"{sys.executable} -m kvmesh ", 1)
            if command.startswith("kvmesh ")
            else command,
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, f"{line}\n{output.decode()}"


@pytest.mark.integration
async def test_the_python_in_the_docs_runs(mesh: RunningMesh) -> None:  # noqa: F811
    pages = [ROOT / "README.md", ROOT / "docs/api.md"]
    scripts = [text for page in pages for kind, text in blocks(page) if kind == "python"]

    for script in scripts:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", script.replace(FRONT_DOOR, mesh.url)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        assert output.strip()
    assert len(scripts) == 4
