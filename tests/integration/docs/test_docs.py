"""The documentation says what is true: its commands parse, its quickstart runs, its links lead,
and what it names (files, modules, classes, tests, make targets) exists.
"""

import asyncio
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.house.tree import PACKAGES, find_files
from kvmesh.app.ops.config import render_markdown
from kvmesh.app.views.figure_table import render_metrics
from kvmesh.cli import app
from kvmesh.core.chat.inference import Extension
from kvmesh.core.cost.formulas import PREDICTED_TIME
from kvmesh.core.cost.terms import Candidate, Fleet
from tests.integration.docs import structure_page, terms_table
from tests.integration.mesh.test_mesh import RunningMesh, running_mesh

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    [*(ROOT / "docs").glob("**/*.md"), *ROOT.glob("*.md"), *(ROOT / "deploy").glob("*.md")],
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
EVERYWHERE = sorted(
    {
        *PAGES,
        ROOT / "benchmarks/README.md",
        ROOT / "benchmarks/lab/README.md",
        *(ROOT / "tests").glob("**/*.md"),
        *(ROOT / "config").glob("*.toml"),
    }
    - {ROOT / "CHANGELOG.md"}  # history names what was
)
FOR_DEVELOPERS = [
    *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md")),
    *(
        ROOT / "docs" / name
        for name in ("start/glossary.md", "contribute/structure.md", "contribute/style.md")
    ),
]
SPAN = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"(?<![\w./…<>{}*-])(?:[\w.-]+/)+[\w-]+\.(?:py|md|toml|ya?ml|json|sh|[ch])\b")
FOLDER = re.compile(r"[\w.-]+(?:/[\w.-]+)+/?")
MODULE = re.compile(r"(?<![\w./-])(?:kvmesh|kvmesh_lab|benchmarks|tests)(?:\.[A-Za-z_]\w*)+")
TEST = re.compile(r"([\w./-]+\.py)::(test_\w+)")
CLASS = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]*)+")
MAKE = re.compile(r"`make ([a-z-]+)")
PLACEHOLDER = re.compile(r"(?:^|[/_])[A-Z]+(?:$|[/_.])")
MADE_LATER = {"deploy/compose/accounts/"}
TREES = {"kvmesh", "tests", "docs", "benchmarks", "deploy", "examples"}
BODY_FIELDS = {
    *("kvmesh.session", "kvmesh.program", "kvmesh.program_parent", "kvmesh.program_final")
}
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
    """Return the commands that are executed against a mesh; what two pages say is run once."""
    names = ("start/quickstart.md", "start/did-it-help.md", "reference/api.md")
    lines = [
        line
        for name in names
        for kind, text in blocks(ROOT / "docs" / name)
        if kind == "sh"
        for line in text.splitlines()
        if line
    ]
    return list(dict.fromkeys(lines))


def other_lines() -> list[str]:
    """Return the lines of fenced blocks that call make or kubectl."""
    lines = [
        line.split("#")[0].strip()
        for page in PAGES
        for kind, text in blocks(page)
        if kind in {"", "sh"}
        for line in text.splitlines()
    ]
    return sorted({line for line in lines if re.match(r"(?:make|kubectl)\b", line)})


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

    found = app[command]
    if found.default_command is None:  # its own commands have the flags
        found = found[words[0]]
    known = {name for one in found.assemble_argument_collection() for name in one.names}

    assert flags <= known | {"--config", "--help"}


def test_what_make_and_kubectl_are_given_in_the_docs_exists() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    missing = []
    for line in other_lines():
        words = shlex.split(line.split("|")[0])
        if words[0] == "make":
            missing += [line for word in words[1:] if "=" not in word and word not in targets]
        named = [words[at + 1] for at, word in enumerate(words[:-1]) if word in {"-k", "-f"}]
        missing += [line for name in named if name != "-" and not (ROOT / name).exists()]

    assert not missing


def test_the_kv_events_configuration_of_each_engine_is_json_with_the_ports_of_its_sidecar() -> None:
    text = "".join(text for page in PAGES for _, text in blocks(page))
    found = re.findall(r"--kv-events-config '(\{.*?\})'", text, re.DOTALL)

    assert len(found) >= 4
    for one in found:
        config = json.loads(one)
        assert config["publisher"] == "zmq"
        assert (config["endpoint"], config["replay_endpoint"]) == ("tcp://*:5557", "tcp://*:5657")


def test_links_lead_somewhere() -> None:
    links = [
        (page, link)
        for page in PAGES
        for link in LINK.findall(page.read_text())
        if "://" not in link
    ]

    assert [f"{page}: {link}" for page, link in links if not (page.parent / link).exists()] == []


def places(page: Path) -> list[Path]:
    """Return the folders that a path on this page may be relative to."""
    return [ROOT, *PACKAGES, PACKAGES[1].parent, page.parent]


def exists(page: Path, name: str) -> bool:
    return any((place / name).exists() or (place / f"{name}.py").exists() for place in places(page))


def folders(text: str) -> set[str]:
    """Return the spans that are paths without a suffix: they begin like one of our folders."""
    ours = {entry.name for place in (ROOT, *PACKAGES) for entry in place.iterdir()}
    spans = (span for span in SPAN.findall(text) if FOLDER.fullmatch(span))
    return {span for span in spans if span.split("/")[0] in ours}


def is_module(name: str) -> bool:
    """Tell whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        root = PACKAGES[1].parent if parts[0] == "kvmesh_lab" else ROOT
        path = root.joinpath(*parts[:end])
        if path.is_dir() or path.with_suffix(".py").exists():
            module = import_module(".".join(parts[:end]))
            return end == len(parts) or hasattr(module, parts[end])
    return False


def test_every_path_named_exists() -> None:
    missing = []
    for page in EVERYWHERE:
        text = re.sub(r"\w+://\S+", "", page.read_text())
        named = {*FILE.findall(text), *folders(text)} - MADE_LATER
        ours = sorted(name for name in named if not PLACEHOLDER.search(name))
        missing += [f"{page}: {name}" for name in ours if not exists(page, name)]

    assert not missing, "\n".join(missing)


def test_every_module_named_exists() -> None:
    missing = []
    for page in EVERYWHERE:
        spans = [*SPAN.findall(page.read_text()), *(text for _, text in blocks(page))]
        names = {name for span in spans for name in MODULE.findall(span)} - BODY_FIELDS
        missing += [f"{page}: {name}" for name in sorted(names) if not is_module(name)]

    assert not missing, "\n".join(missing)


def test_every_module_and_path_that_the_code_names_exists() -> None:
    homes = {
        entry.name: package.name
        for package in PACKAGES
        for entry in package.iterdir()
        if entry.is_dir()
    }
    missing: set[str] = set()
    for path in (path for package in PACKAGES for path in find_files(package)):
        text = path.read_text()
        dotted = re.findall(r"``?((?:kvmesh(?:_lab)?\.)?[a-z]\w*(?:\.\w+)+)``?", text)
        ours = {re.sub(r"^kvmesh(_lab)?\.", "", name) for name in dotted} - BODY_FIELDS
        heads = {name: homes.get(name.split(".")[0]) for name in ours}
        named = {f"{head}.{name}" for name, head in heads.items() if head}
        missing |= {f"{path.name}: {name}" for name in named if not is_module(name)}
        files = {name for name in FILE.findall(text) if name.split("/")[0] in TREES}
        missing |= {f"{path.name}: {name}" for name in files if not exists(path, name)}

    assert not missing, "\n".join(sorted(missing))


def test_every_test_and_make_target_named_exists() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    missing = []
    for page in EVERYWHERE:
        text = page.read_text()
        missing += [f"{page}: {name}" for name in MAKE.findall(text) if name not in targets]
        for file, name in TEST.findall(text):
            found = (ROOT / "tests").rglob(Path(file).name)
            if not any(f"def {name}(" in path.read_text() for path in found):
                missing.append(f"{page}: {file}::{name}")

    assert not missing, "\n".join(missing)


def test_every_class_named_exists() -> None:
    code = "".join(path.read_text() for one in PACKAGES for path in find_files(one))
    words = set(re.findall(r"\w+", code))
    spans = [span for page in FOR_DEVELOPERS for span in SPAN.findall(page.read_text())]

    missing = {name for span in spans for name in CLASS.findall(span)} - words

    assert not missing, " ".join(sorted(missing))


def test_the_structure_page_has_every_package_and_contract() -> None:
    page = structure_page.PAGE.read_text()

    assert page == structure_page.render(page), (
        "run: python -m tests.integration.docs.structure_page"
    )


def test_what_is_made_of_the_table_of_terms_is_up_to_date() -> None:
    made = {terms_table.HEADER: terms_table.header(), terms_table.PAGE: terms_table.page()}

    for path, text in made.items():
        assert path.read_text() == text, "run: python -m tests.integration.docs.terms_table"


def test_the_configuration_page_is_what_the_command_prints() -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text()

    assert page == render_markdown(), "run: make config"


def test_the_tables_of_metrics_are_what_the_command_prints() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text()

    assert page.endswith(f"\n{render_metrics()}"), "run: make config"


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    with running_mesh(tmp_path_factory.mktemp("mesh"), engines=2, replicas=1) as mesh:
        yield mesh


@pytest.mark.integration
async def test_what_the_docs_run_live_runs(mesh: RunningMesh) -> None:
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
async def test_the_python_in_the_docs_runs(mesh: RunningMesh, tmp_path: Path) -> None:
    pages = [ROOT / "README.md", ROOT / "docs/reference/api.md"]
    scripts = [text for page in pages for kind, text in blocks(page) if kind == "python"]
    for script in scripts:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", script.replace(FRONT_DOOR, mesh.url)),
            env=os.environ | {"TMPDIR": str(tmp_path)},  # other meshes of this user are named there
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        assert output.strip()
    assert len(scripts) == 5


def test_the_default_formula_is_quoted_as_it_is_computed() -> None:
    formula = PREDICTED_TIME.formula

    assert formula.text in (ROOT / "docs/start/concepts.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("struct", [Candidate, Fleet])
def test_every_term_that_a_formula_of_one_s_own_may_read_is_listed_with_its_unit(
    struct: type[Candidate | Fleet],
) -> None:
    page = (ROOT / "docs/operate/tuning.md").read_text(encoding="utf-8")
    section = page.split("## A formula of your own")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]

    assert not [
        name for name in struct.__struct_fields__ if not any(f"`{name}`" in row for row in rows)
    ]


def test_each_wish_is_documented_as_header_and_field() -> None:
    text = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
    fields = re.search(r'`"kvmesh": \{(.*?)\}`', text, re.DOTALL)

    assert fields is not None
    assert set(re.findall(r'"(\w+)"', fields[1])) == set(Extension.__struct_fields__)
    named = {name.replace("_", "-") for name in Extension.__struct_fields__}
    headers = {"mode": "router-mode", "worker": "worker-id"}
    assert not [one for one in named if f"`x-kvmesh-{headers.get(one, one)}" not in text]
