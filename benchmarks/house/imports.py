"""Who imports whom within a tree: cycles and the longest chain."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter

from benchmarks.house.tree import SourceFile, find_statements

Graph = dict[str, set[str]]
"""The modules that each module imports, those of the tree only."""


def import_graph(files: list[SourceFile]) -> Graph:
    """Return who imports whom, also within functions. That a package runs first is no import."""
    known = {file.module for file in files}
    return {file.module: set(_imports(file, known)) - {file.module} for file in files}


def _imports(file: SourceFile, known: set[str]) -> Iterator[str]:
    for node in find_statements(file.syntax):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(node, file)
            for alias in node.names:
                inside = f"{origin}.{alias.name}"
                if inside in known:
                    yield inside
                elif origin in known:
                    yield origin


def _origin(node: ast.ImportFrom, file: SourceFile) -> str:
    """Return the absolute name of what is imported from."""
    if not node.level:
        return node.module or ""
    parts = file.module.split(".")
    above = parts[: len(parts) - node.level + file.is_package]
    return ".".join((*above, node.module) if node.module else above)


def find_cycles(graph: Graph) -> list[list[str]]:
    """Return the groups of modules that import each other, by whatever detour, each sorted."""
    reached = {module: _reached(graph, module) for module in graph}
    groups = {
        tuple(sorted(other for other in others if module in reached[other]))
        for module, others in reached.items()
        if module in others
    }
    return sorted([*group] for group in groups)


def _reached(graph: Graph, module: str) -> set[str]:
    """Return every module that `module` imports, directly or not; itself only in a cycle."""
    found: set[str] = set()
    ahead = [module]
    while ahead:
        updates = graph[ahead.pop()] - found
        found |= updates
        ahead.extend(updates)
    return found


def find_longest_chain(graph: Graph) -> list[str]:
    """Return the longest chain of imports, the importing module first; a cycle counts as one."""
    cycles = {module: group[0] for group in find_cycles(graph) for module in group}
    acyclic: Graph = {}
    for module, others in graph.items():
        one = cycles.get(module, module)
        acyclic.setdefault(one, set()).update(
            {cycles.get(other, other) for other in others} - {one}
        )
    chains: dict[str, list[str]] = {}
    for module in TopologicalSorter(acyclic).static_order():
        below = max((chains[other] for other in sorted(acyclic[module])), key=len, default=[])
        chains[module] = [module, *below]
    return max(chains.values(), key=len, default=[])
