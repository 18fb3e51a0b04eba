"""Every regular expression of the package, at texts made up to be searched for long.

A pattern is pumped: what each of its repetitions takes, many times, then what it does not end with.
"""

import ast
import re
import re._constants as code  # type: ignore[import-not-found]  # no stub of it
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

import pytest

from benchmarks.house.tree import PACKAGES, find_files
from tests.property.bounds.work import assert_linear

OWN: Final = {"mocker", "simulator", "traces"}
"""Packages that read nothing but what their operator wrote."""
BOUNDED: Final = {
    ("bounds.py", "_WHOLE"): 40,
    ("bounds.py", "_REAL"): 40,
    ("app/front/cors.py", "_NAMES"): 1024,
}
"""Patterns whose texts are measured before: the most characters they see."""
PUMPED: Final = 3_000


def patterns() -> Iterator[tuple[str, str, bytes | str, int, set[str]]]:
    """Yield file, name, pattern, flags and methods called of each pattern that there is."""
    for package, path in ((one, path) for one in PACKAGES for path in find_files(one)):
        where = path.relative_to(package).as_posix()
        if where.split("/")[0] in OWN:
            continue
        text = path.read_text(encoding="utf-8")
        if "re.compile(" not in text:
            continue
        tree = ast.parse(text)
        for name in set(_targets(tree)):
            found = _compiled(package.name, where, name)
            if found is not None:
                used = set(re.findall(rf"\b{name}\.(\w+)", text)) & METHODS.keys()
                yield where, name, found.pattern, found.flags & ~re.UNICODE, used or {"fullmatch"}


def _targets(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "re.compile":
            yield from (one.id for one in targets if isinstance(one, ast.Name))


def _compiled(package: str, where: str, name: str) -> "re.Pattern[Any] | None":
    module = __import__(f"{package}.{where.removesuffix('.py')}".replace("/", "."), fromlist=[name])
    found = getattr(module, name)
    return found if isinstance(found, re.Pattern) else None


METHODS: Final[dict[str, Callable[[Any, Any], object]]] = {
    "fullmatch": lambda found, text: found.fullmatch(text),
    "match": lambda found, text: found.match(text),
    "search": lambda found, text: found.search(text),
    "finditer": lambda found, text: list(found.finditer(text)),
    "findall": lambda found, text: found.findall(text),
    "split": lambda found, text: found.split(text),
    "sub": lambda found, text: found.sub(text[:0], text),
}


def sample(tree: Any) -> str:
    """Return a text that a parsed pattern takes."""
    return "".join(_sample(kind, value) for kind, value in tree)


def _sample(kind: Any, value: Any) -> str:
    match kind:
        case code.LITERAL:
            found = chr(value)
        case code.NOT_LITERAL:
            found = "a" if value != ord("a") else "b"
        case code.ANY:
            found = "a"
        case code.IN:
            found = _one_of(value)
        case code.BRANCH:
            found = sample(value[1][0])
        case code.SUBPATTERN:
            found = sample(value[3])
        case code.MAX_REPEAT | code.MIN_REPEAT:
            least, _, inner = value
            found = sample(inner) * max(least, 1)
        case _:
            found = ""
    return found


def _one_of(choices: Any) -> str:
    made = re.compile("[" + "".join(map(_class, choices)) + "]")
    return next(chr(one) for one in [*range(32, 127), *range(32)] if made.match(chr(one)))


def _class(choice: Any) -> str:
    kind, value = choice
    if kind is code.NEGATE:
        return "^"
    if kind is code.RANGE:
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    if kind is code.CATEGORY:
        return {code.CATEGORY_SPACE: r"\s", code.CATEGORY_DIGIT: r"\d"}.get(value, r"\w")
    return re.escape(chr(value))


def pumps(tree: Any) -> Iterator[tuple[str, str]]:
    """Yield what comes before each repetition, and what it takes once; and the whole, once."""
    yield "", sample(tree)
    before = ""
    for kind, value in tree:
        if kind in {code.MAX_REPEAT, code.MIN_REPEAT}:
            yield from ((before + head, pump) for head, pump in pumps(value[2]))
        elif kind is code.SUBPATTERN:
            yield from ((before + head, pump) for head, pump in pumps(value[3]))
        elif kind is code.BRANCH:
            for branch in value[1]:
                yield from ((before + head, pump) for head, pump in pumps(branch))
        before += _sample(kind, value)


CASES: Final = sorted(patterns(), key=lambda one: one[:2])


@pytest.mark.parametrize(("where", "name", "pattern", "flags", "methods"), CASES)
def test_a_pattern_takes_as_long_as_its_text(
    where: str, name: str, pattern: bytes | str, flags: int, methods: set[str]
) -> None:
    most = BOUNDED.get((where, name))
    found: re.Pattern[Any] = re.compile(pattern, flags)
    tree = parser.parse(pattern if isinstance(pattern, str) else pattern.decode("latin-1"), 0)
    for head, pump in {one for one in pumps(tree) if one[1]}:
        for end in ("", "\0", "\n", '"'):
            for method in methods:

                def make(size: int, parts: Any = (head, pump, end, method)) -> Callable[[], object]:
                    before, middle, last, way = parts
                    text = before + middle * (size // len(middle) + 1) + last
                    text = text if most is None else text[-most:]
                    data = text if isinstance(pattern, str) else text.encode("latin-1")
                    return lambda: METHODS[way](found, data)

                assert_linear(make, PUMPED)


def test_a_quadratic_pattern_is_seen() -> None:
    tree = parser.parse(r"[0-9]+\.?[0-9]*x", 0)
    found = re.compile(r"[0-9]+\.?[0-9]*x")
    heads = {one for one in pumps(tree) if one[1].isdigit()}
    assert heads

    def all_of(size: int) -> Callable[[], object]:
        texts = [head + pump * size for head, pump in heads]
        return lambda: [found.fullmatch(text) for text in texts]

    with pytest.raises(AssertionError, match="times as much"):
        assert_linear(all_of, PUMPED // 2)


GLOBS: Final = ("*a*a*a*a*b", "*aaaa*b", "[!b]*[!b]*b", "?*?*?*b", "*" * 20 + "b")


@pytest.mark.parametrize("glob", GLOBS)
def test_a_glob_of_a_rule_takes_as_long_as_what_a_client_names(glob: str) -> None:
    """Rules by model, header and tenant: names have 512 characters, headers 64 KiB."""

    def make(size: int) -> Callable[[], object]:
        name = "a" * size
        return lambda: fnmatchcase(name, glob)

    assert_linear(make, 6_400)
