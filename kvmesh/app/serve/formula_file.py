"""Formulas read from Python files, as `FILE.py:FUNCTION` names them."""

import ast
import importlib.util
import re
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

from kvmesh.app.serve.formula_limit import time_limit
from kvmesh.core.cost.catalogue import PUBLISHED, Formulas, own_name
from kvmesh.core.cost.formulas import Cost
from kvmesh.core.cost.own import FormulaTimeout, Guard, describe
from kvmesh.core.cost.own_check import check_formula
from kvmesh.core.cost.own_function import own_cost
from kvmesh.errors import ConfigError

IMPORT_S: Final = 10.0
"""A file may take so long to run."""

MOST: Final = 8
"""Formulas of one's own in a process."""

_NAMED: Final = re.compile(r"(?:^|kv:|kv-cost=)([^:=,]+\.py):([^\W\d]\w*)")


def named_formulas(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Return the files and functions that settings name, each once, in order."""
    return list(dict.fromkeys(found for text in texts for found in _NAMED.findall(text)))


def load_formulas(texts: Iterable[str]) -> Formulas:
    """Return the published formulas and those in files that `texts` (settings) name.

    Their files are run, in this process, with all its rights. Raises `ConfigError` for a file or a
    function that there is not, and for a formula that fails its trial (`check_formula`).
    """
    named = named_formulas(texts)
    if not named:
        return PUBLISHED
    if len(named) > MOST:
        raise ConfigError(f"{len(named)} formulas of files: at most {MOST}")
    guard = time_limit()
    modules = {path: _run(Path(path), guard) for path, _ in named}
    costs: list[Cost] = []
    for path, function in named:
        found = getattr(modules[path], function, None)
        if found is None:
            raise ConfigError(f"{path}: there is no function {function!r}; write {path}:FUNCTION")
        cost = own_cost(found, own_name(path, function), guard)
        check_formula(cost, guard, time.perf_counter)
        costs.append(cost)
    return Formulas(costs)


def _run(path: Path, guard: Guard) -> ModuleType:
    """Return the file as a module. Raises `ConfigError`."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text, str(path))
    except OSError as error:
        raise ConfigError(f"cost formula {path}: {error.strerror}") from error
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"cost formula {path}: {error}") from error
    for line in _swallowing(tree):
        raise ConfigError(
            f"cost formula {path}, line {line}: it catches everything, also what would end an "
            "endless loop; name the exceptions, or Exception"
        )
    name = f"kvmesh_formula_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # annotations are looked up there
    loader = spec.loader
    try:
        guard(lambda: loader.exec_module(module), IMPORT_S)
    except FormulaTimeout:
        raise ConfigError(f"cost formula {path}: still running after {IMPORT_S:g} s") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ConfigError(f"cost formula {path}: {describe(error)}") from error
    return module


def _swallowing(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of handlers that catch what is no `Exception`, and do not raise it again."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            caught = "BaseException" if node.type is None else ast.unparse(node.type)
            raised = any(isinstance(one, ast.Raise) for one in ast.walk(node))
            if "BaseException" in caught and not raised:
                yield node.lineno
