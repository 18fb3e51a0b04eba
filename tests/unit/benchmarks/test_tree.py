"""What `python -m benchmarks.house` measures, on small trees."""

from pathlib import Path

from benchmarks.house.imports import find_cycles, find_longest_chain, import_graph
from benchmarks.house.tree import find_reaches, measure, read_tree


def write_tree(folder: Path, **modules: str) -> Path:
    """Write a package `p`; `a__b` is the module `p.a.b`."""
    root = folder / "p"
    for name, text in modules.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)
    (root / "__init__.py").touch()
    return root


def test_sizes_are_those_of_files_functions_and_folders(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path,
        one="def f(a, b, c, d, e, g, h):\n    return 1\n",
        room__two=(
            "class C:\n    def m(self, a, b, c, d, e, *, g):\n        '''Say.'''\n\n"
            "        return self.x.y.z\n"
        ),
    )

    sizes = measure(root, read_tree(root))

    assert (sizes.files, sizes.lines, sizes.folders, sizes.most_files) == (4, 7, 2, 2)
    assert (sizes.function_median, sizes.function_p90, sizes.function_max) == (3.0, 4, 4)
    assert (sizes.many_arguments, sizes.reaches) == (1, 1)


def test_a_reach_begins_in_a_variable_and_is_counted_once(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path,
        one=(
            "import os.path\na.b.c\na.b.c.d\nself.a.b.c()\n"
            "os.path.x.y.z\nf().a.b.c.d\na[0].b.c.d.e\n"
        ),
    )

    assert [reach for file in read_tree(root) for reach in find_reaches(file)] == [
        "p/one.py:3 a.b.c.d",
        "p/one.py:4 self.a.b.c",
    ]


def test_imports_are_found_however_they_are_written(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path,
        one="import os\nfrom p.two import thing\n",
        two="def late():\n    from p import room\n",
        room__three="from .four import x\nfrom .. import one\nfrom ..two import y\n",
        room__four="import p.one\n",
    )

    graph = import_graph(read_tree(root))

    assert graph["p.one"] == {"p.two"}
    assert graph["p.two"] == {"p.room"}
    assert graph["p.room.three"] == {"p.room.four", "p.one", "p.two"}
    assert graph["p.room.four"] == {"p.one"}
    assert find_cycles(graph) == []
    assert find_longest_chain(graph) == [
        *("p.room.three", "p.room.four", "p.one", "p.two", "p.room")
    ]


def test_a_cycle_is_found_and_counts_once_in_a_chain(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path,
        a="import p.b\n",
        b="import p.c\n",
        c="def late():\n    import p.b\n    import p.d\n",
        d="",
    )

    graph = import_graph(read_tree(root))

    assert find_cycles(graph) == [["p.b", "p.c"]]
    assert find_longest_chain(graph) == ["p.a", "p.b", "p.d"]
    assert find_longest_chain({}) == []
