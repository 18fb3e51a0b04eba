"""What comparison.md says is what was recorded, of the versions that are measured."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/measured/comparison.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)+)", PAGE, re.MULTILINE))
WITHOUT_FIGURES = {"Features", "Flags of other routers"}
FEATURES, LACKS = SECTIONS["Features"].split("\n\n| what they")
COMMIT = re.compile(r"\b[0-9a-f]{7,8}\b")
PEERS = ("vllm-router", "sglang-router", "smg")
DYNAMO = re.compile(r"ai-dynamo-runtime==([\d.]+)")


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("section", sorted(SECTIONS.keys() - WITHOUT_FIGURES))
def test_a_section_of_figures_names_its_day_and_its_commit(section: str) -> None:
    text = SECTIONS[section]

    assert re.search(r"\b2026-\d\d-\d\d\b", text)
    assert COMMIT.search(text)


def test_every_commit_is_one_of_this_repository() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no repository to look commits up in")
    shallow = ["git", "rev-parse", "--is-shallow-repository"]
    if subprocess.run(shallow, cwd=ROOT, capture_output=True, check=True).stdout != b"false\n":
        pytest.skip("a shallow clone lacks older commits")
    named = {one for one in COMMIT.findall(PAGE) if not one.isdigit()}

    asked = "".join(f"{one}\n" for one in sorted(named)).encode()
    line = ["git", "cat-file", "--batch-check=%(objecttype)"]
    told = subprocess.run(line, cwd=ROOT, input=asked, capture_output=True, check=True)

    assert set(told.stdout.decode().split("\n")) == {"commit", ""}, told.stdout.decode()


def test_what_kvmesh_is_said_to_have_is_linked_to_where_it_is_described() -> None:
    cells = [row[1] for row in rows(FEATURES)[1:]]

    assert len(cells) > 8
    assert [cell for cell in cells if not re.fullmatch(r"\[[^]]+\]\(\.\./[^)]+\)", cell)] == []


def test_every_peer_has_a_line_of_what_kvmesh_lacks() -> None:
    peers = [name.split()[0].lower() for name in rows(FEATURES)[0][2:]]
    lacking = [row[0].split()[0].lower() for row in rows(LACKS)]

    assert lacking == peers


def test_peers_are_named_by_the_versions_that_benchmarks_install() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    dynamo = DYNAMO.search(pyproject)

    for name in PEERS:
        (version,) = set(re.findall(rf"\b{name}==([\d.]+)", makefile))
        told = set(re.findall(rf"\b{name} (\d+\.\d+\.\d+)", PAGE))
        assert told == {version}, name
    assert dynamo is not None
    assert set(re.findall(r"Dynamo (\d+\.\d+\.\d+)", PAGE)) == {dynamo[1]}


def test_the_cost_of_a_hop_is_that_of_the_page_with_all_cases() -> None:
    recorded: dict[tuple[str, str], str] = {}
    text = (ROOT / "docs/measured/request-cost.md").read_text(encoding="utf-8")
    for row in rows(text):
        if len(row) == 6:
            recorded[row[0], row[1]] = row[3].strip("*")
    told = [row for row in rows(SECTIONS["One hop"]) if ": " in row[0] and len(row) == 5]

    assert len(told) > 8
    for case, *ratios in told[1:]:
        body, heads = case.split(": ")
        routers = (f"kvmesh, bytes: {heads}", f"kvmesh, tokenizer: {heads}")
        others = ("vllm-router 0.1.17 cache", "sglang-router 0.3.2 cache")
        expected = [recorded[body, one] for one in routers]
        if heads == "varying heads":
            expected += [recorded[body, one] for one in others]
        assert ratios[: len(expected)] == expected, case


def test_the_readme_shows_figures_of_the_page_that_has_them_all() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    demo = (ROOT / "docs/start/demo.md").read_text(encoding="utf-8")
    measured = demo[demo.index("## Measured") : demo.index("### As printed")]
    full = rows(measured[measured.index("### Full load") :])
    chats = full.index(next(row for row in full if row[0] == "multi-turn"))
    shown = {name: (robin, kv) for name, robin, kv in rows(readme)[:4]}
    day, commit = re.findall(r"\((?:chats[^)]*), (\d{4}-\d\d-\d\d), ([0-9a-f]{7,8}),", readme)[0]

    told = [
        shown["prompt tokens found in the cache"],
        shown["time to first token"],
        shown["output tokens a second"],
    ]
    recorded = [full[chats], full[chats + 2], full[chats + 3]]
    assert [tuple(map(number, pair)) for pair in told] == [
        (number(row[4]), number(row[3])) for row in recorded
    ]
    assert commit in measured
    assert f"{int(day[-2:])} November {day[:4]}" in measured


def number(cell: str) -> int:
    found = re.match(r"[\d,]+", cell)
    assert found is not None, cell
    return int(found[0].replace(",", ""))
