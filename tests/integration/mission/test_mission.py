"""The table of promises is made from its rows, whole, and names only what exists."""

import ast
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from kvmesh.cli import app
from tests.integration.mission import page
from tests.integration.mission.page import KEPT, Row, judge, last_run, outcomes, read, render

PROMISES = 98
REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_kept[one]"/>
<testcase classname="tests.unit.test_a" name="test_kept[two]"><skipped/></testcase>
<testcase classname="tests.unit.test_a" name="test_failed[one]"/>
<testcase classname="tests.unit.test_a" name="test_failed[two]"><failure/></testcase>
<testcase classname="tests.unit.test_a" name="test_broken"><error/></testcase>
<testcase classname="tests.unit.test_a" name="test_skipped"><skipped/></testcase>
</testsuite></testsuites>"""


@cache
def names_in(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_page_is_what_the_rows_say() -> None:
    text = page.PAGE.read_text()

    assert text == render(read(), last_run(text))


def test_every_promise_has_a_row_and_every_row_a_source() -> None:
    mission = read()

    assert len(mission.row) == PROMISES
    assert {row.source for row in mission.row} == set(mission.sources)
    assert len({(row.source, row.promise) for row in mission.row}) == PROMISES
    assert all(row.shown for row in mission.row)


@pytest.mark.parametrize("row", read().row, ids=lambda row: row.promise[:40])
def test_what_shows_a_promise_exists(row: Row) -> None:
    for test in row.tests:
        path, _, name = test.partition("::")
        assert name in names_in(page.ROOT / path), test
    for command in row.commands:
        first, second, *_ = command.split()
        assert first in {"kvmesh", "python"}, command
        assert first != "kvmesh" or second in {str(name) for name in app}, command


def test_a_test_is_kept_when_a_case_passed_and_none_failed() -> None:
    assert outcomes(ET.fromstring(REPORT)) == {  # noqa: S314  our own text
        "tests/unit/test_a.py::test_kept": KEPT,
        "tests/unit/test_a.py::test_failed": "failed",
        "tests/unit/test_a.py::test_broken": "failed",
        "tests/unit/test_a.py::test_skipped": "skipped",
    }


def test_a_promise_is_kept_only_when_all_that_shows_it_is() -> None:
    rows = (
        Row("a", "whole", "", ("unit/x.py::test_1", "kvmesh demo")),
        Row("a", "half", "", ("unit/x.py::test_1", "unit/x.py::test_2")),
        Row("a", "not run", "", ("unit/x.py::test_3",)),
    )
    found = {
        "tests/unit/x.py::test_1": KEPT,
        "tests/unit/x.py::test_2": "skipped",
        "kvmesh demo": KEPT,
    }

    missed = judge(rows, found)

    assert [(number, wrong) for number, _, wrong in missed] == [
        (2, ["tests/unit/x.py::test_2: skipped"]),
        (3, ["tests/unit/x.py::test_3: not found"]),
    ]


def test_a_run_is_remembered_and_a_page_without_one_says_so() -> None:
    mission = read()

    assert last_run("") == page.NEVER
    assert last_run(render(mission, "Last run: today.")) == "Last run: today."
