"""The house's figures: how they are counted, and that none has grown."""

import ast
from pathlib import Path

from benchmarks.house.figures import (
    count_c,
    count_js,
    count_python,
    find_dead,
    grown,
    measure_house,
    read_record,
)
from benchmarks.house.native import NativeTree
from benchmarks.house.tree import SourceFile, read_tree


def test_no_figure_has_grown_by_more_than_two_percent() -> None:
    more = grown(read_record().now, measure_house())

    assert not more, f"make it smaller, or `python -m benchmarks.house --write`: {more}"


def test_code_is_counted_without_comments_docstrings_and_blank_lines() -> None:
    python = '"""Says."""\n\nX = 1  # one\n\n\ndef f():\n    """Do.\n\n    More.\n    """\n'
    python += '    # no\n    return """\n    a"""\n'
    file = SourceFile(Path("a.py"), "a", python, ast.parse(python))

    assert count_python(file) == 4
    assert count_c("/* a\n b */\nint x; /* c */\n\n// d\nint y;\n") == 2
    assert count_js("// a\nconst a = 'http://b'; // c\n/* d\n */\n") == 1


def test_a_comment_that_names_what_is_not_there_is_found(tmp_path: Path) -> None:
    room = tmp_path / "kvmesh/core/index"
    room.mkdir(parents=True)
    for folder in (room, *room.parents[:2]):
        (folder / "__init__.py").write_text('"""A room."""\n')
    (room / "tier.py").write_text(
        "# core.index.tier.Tier, core/index/tier.py and vllm/v1/tier.py are there;\n"
        "# core.index.gone.Tier and core/index/gone.py are not\n"
        "class Tier: ...\n"
    )
    native = tmp_path / "kvmesh/native/index"
    native.mkdir(parents=True)
    (native / "tier.c").write_text("/* core.index.tier.Tier, core.index.tier.Gone */\n")

    files, tree = read_tree(tmp_path / "kvmesh"), NativeTree(tmp_path / "kvmesh/native")

    assert sorted(find_dead(tmp_path, files, tree)) == [
        ("kvmesh/core/index/tier.py", "core.index.gone.Tier"),
        ("kvmesh/core/index/tier.py", "core/index/gone.py"),
        ("kvmesh/native/index/tier.c", "core.index.tier.Gone"),
    ]


def test_growth_beyond_two_percent_and_new_figures_are_named() -> None:
    recorded = {"files": 100, "rooms": 24, "circles": 0}

    assert grown(recorded, {"files": 102, "rooms": 20, "circles": 0}) == []
    assert grown(recorded, {"files": 103, "rooms": 25, "circles": 1, "new": 1}) == [
        "files: 100 -> 103",
        "rooms: 24 -> 25",
        "circles: 0 -> 1",
        "new: 0 -> 1",
    ]
