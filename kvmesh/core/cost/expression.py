"""A cost formula as one line of arithmetic, from which everything else about it follows."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, cast

from kvmesh.core.cost.terms import DERIVED, FORMATS, Candidate, Fleet
from kvmesh.core.cost.weights import NoWeights, Weights
from kvmesh.errors import ConfigError

Function = Callable[[Candidate, Fleet, Weights], float]

Step = str | int | float
"""One step of a program in postfix order: a number; the name of a term (`c.`, `f.` or `w.` and the
field of `Candidate`, `Fleet` or the formula's weights); one of `OPERATORS`; `=` and a name of
`DERIVED`, for what was computed last; such a name, to have it once more.
"""

_SIGNS: Final[Mapping[type[ast.operator], str]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
}
_CHOICES: Final = frozenset({"max", "min"})
OPERATORS: Final = _CHOICES.union(_SIGNS.values())
_PLACES: Final[Mapping[str, str]] = {
    field: f"{holder}.{field}"
    for holder, fields in (
        ("c", Candidate.__struct_fields__[1:]),
        ("f", Fleet.__struct_fields__),
    )
    for field in fields
}
_NAME: Final = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


class Expression:
    """An arithmetic formula, written once: `text` is what is printed in words. Made of it are
    `function`, the line with numbers, and `program`, which the compiled core runs
    (kvmesh/native/decide/costs.c).

    `text` names fields of `Candidate`, `Fleet` and the Struct `weights`, and `DERIVED`; it knows
    `+ - * /`, `max(a, b)` and `min(a, b)`. It gives the same to the last bit wherever it is
    computed, as long as sums and products of counts stay below 2^53. `formats` go before `FORMATS`.
    """

    def __init__(
        self,
        text: str,
        formats: Mapping[str, str] | None = None,
        weights: type[Weights] = NoWeights,
    ) -> None:
        """Raises `ConfigError` for what is no such formula."""
        self.text = text
        self.weights = weights
        self._places = {**_PLACES, **{name: f"w.{name}" for name in weights.__struct_fields__}}
        self.program = tuple(_postfix(_parse(text), text, set(), self._places))
        self.function = _compile(self.program)
        formats = {**FORMATS, **(formats or {})}
        self._derived = [name for name in DERIVED if f"={name}" in self.program]
        self._line = _NAME.sub(lambda found: _field(found[0], formats, self._places), text)

    def names(self, holder: str) -> tuple[str, ...]:
        """Return the fields that are read of the candidate (`c`), the fleet (`f`) or the weights
        (`w`), sorted.
        """
        names = {one[2:] for one in self.program if isinstance(one, str) and one[1:2] == "."}
        return tuple(sorted(name for name in names if self._places[name][0] == holder))

    def line(self, c: Candidate, f: Fleet, w: Weights) -> str:
        """Return the formula with this candidate's numbers in place of names."""
        derived = {name: _DERIVED[name].function(c, f, w) for name in self._derived}
        return self._line.format(c=c, f=f, w=w, **derived)


def _field(name: str, formats: Mapping[str, str], places: Mapping[str, str]) -> str:
    """Return what stands for a name in the line."""
    return name if name in _CHOICES else f"{{{places.get(name, name)}:{formats.get(name, '')}}}"


def _parse(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"cost formula {text!r}: {error}") from None


def _postfix(
    node: ast.expr, text: str, known: set[str], places: Mapping[str, str]
) -> Iterator[Step]:
    match node:
        case ast.BinOp(left, operator, right) if type(operator) in _SIGNS:
            yield from _postfix(left, text, known, places)
            yield from _postfix(right, text, known, places)
            yield _SIGNS[type(operator)]
        case ast.Call(ast.Name(name), [left, right], []) if name in _CHOICES:
            yield from _postfix(left, text, known, places)
            yield from _postfix(right, text, known, places)
            yield name
        case ast.UnaryOp(ast.USub(), operand):
            yield -1
            yield from _postfix(operand, text, known, places)
            yield "*"
        case ast.Constant(int() | float() as number) if not isinstance(number, bool):
            yield number
        case ast.Name(name) if name in known:
            yield name
        case ast.Name(name) if name in DERIVED:
            yield from _postfix(_parse(DERIVED[name]), text, known, places)
            yield f"={name}"
            known.add(name)
        case ast.Name(name) if name in places:
            yield places[name]
        case _:
            raise ConfigError(
                f"cost formula {text!r}: {ast.unparse(node)!r} is none of its terms; it knows "
                f"+ - * / max(a, b) min(a, b), numbers, {', '.join((*DERIVED, *places))}"
            )


def _compile(program: Sequence[Step]) -> Function:
    stack: list[str] = []
    for step in program:
        if not isinstance(step, str):
            stack.append(repr(step))
        elif step in OPERATORS:
            right, left = stack.pop(), stack.pop()
            infix = step not in _CHOICES
            stack.append(f"({left} {step} {right})" if infix else f"{step}({left}, {right})")
        elif step.startswith("="):
            stack.append(f"({step[1:]} := {stack.pop()})")
        else:
            stack.append(step)
    # The program has numbers, operators and names of fields, and nothing else. `0.0 +`: no whole
    # number.
    source = f"lambda c, f, w: 0.0 + {stack.pop()}"
    return cast("Function", eval(source, {"max": max, "min": min}))  # noqa: S307


_DERIVED: Final = {name: Expression(text) for name, text in DERIVED.items()}
