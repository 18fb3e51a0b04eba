"""Chat templates run with opaque texts, by Jinja's own code: what they do with a text is seen."""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from types import FunctionType
from typing import Final, cast

import jinja2
from jinja2 import nodes
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from kvmesh.core.chat.opaque_text import OpaqueText, Trace, as_text, joined
from kvmesh.core.chat.syntax import EXTENSIONS

Function = Callable[..., object]

_ANY_FILTER: Final = frozenset(
    (
        *("trim", "string", "default", "d", "length", "count", "first", "last", "list", "reverse"),
        *("select", "reject", "selectattr", "rejectattr", "map"),
    )
)
"""Filters that treat a text as Python code does, by methods that are hooked."""

_ANY_TEST: Final = frozenset(
    (
        *("defined", "undefined", "none", "string", "mapping", "number", "integer", "float"),
        *("boolean", "true", "false", "sameas", "callable", "eq", "==", "equalto", "ne", "!="),
    )
)
_SCOPES: Final = frozenset(("_loop_vars", "_block_vars"))
"""What compiled code hands to each call beside its arguments: the variables around it."""

_OF_ALL_TEXTS: Final = frozenset(("iterable", "sequence"))
_GUARD: Final = "kvmesh_guard"


class _Guards(NodeTransformer):
    """Hooks `text in other`, which Python asks of the other side, whose code cannot be hooked."""

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802  jinja2's name
        self.generic_visit(node)
        if any(operand.op in {"in", "notin"} for operand in node.ops):
            sides: list[nodes.Compare | nodes.Operand] = [node, *node.ops[:-1]]
            for side in sides:
                side.expr = nodes.Filter(side.expr, _GUARD, [], [], None, None)
        return node


class TracingEnvironment(ImmutableSandboxedEnvironment):
    """Compiles templates that can be rendered with opaque texts, once for each `trace`."""

    concat = staticmethod(joined)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[*EXTENSIONS])
        self.trace = Trace()
        del self.globals["lipsum"]
        del self.filters["random"]
        for name, one in cast("dict[str, Function]", self.filters).items():
            if name not in _ANY_FILTER:
                self.filters[name] = self.guarded(one, f"filter {name}")
        self.filters["replace"] = self._replace(self.filters["replace"])
        self.filters[_GUARD] = self.guarded(_same, "a search for it")
        for name, test in cast("dict[str, Function]", self.tests).items():
            if name in _OF_ALL_TEXTS:
                self.tests[name] = _true_of_texts(test)
            elif name not in _ANY_TEST:
                self.tests[name] = self.guarded(test, f"test {name}")

    def compile_traced(self, source: str, functions: Mapping[str, object]) -> jinja2.Template:
        """Return the template, whose code makes text of values and joins texts by our functions."""
        template = self.from_string(_Guards().visit(self.parse(source)), globals=dict(functions))
        code = cast("FunctionType", template.root_render_func).__globals__
        code.update(str=as_text, str_join=_joined_values)
        return template

    def call(self, context: Context, obj: object, /, *args: object, **kwargs: object) -> object:
        """Call what a template calls; what is not a template's own gets no texts."""
        own = isinstance(obj, Macro) or obj is Namespace or obj is dict
        method = isinstance(getattr(obj, "__self__", None), OpaqueText)
        given = [value for name, value in kwargs.items() if name not in _SCOPES]
        if not own and not method and (_holds_text(args) or _holds_text(given)):
            raise self.trace.refuse("calls a function with a text")
        return super().call(context, obj, *args, **kwargs)

    def guarded(self, function: Function, what: str) -> Function:
        """Return `function`, which refuses texts among its arguments."""
        skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def guarded(*args: object, **kwargs: object) -> object:
            if _holds_text(args[skipped:]) or _holds_text(kwargs):
                raise self.trace.refuse(f"uses {what} on a text")
            return function(*args, **kwargs)

        return guarded

    def _replace(self, otherwise: Function) -> Function:
        @wraps(otherwise)
        def replace(context: object, text: object, old: str, new: str, *count: int) -> object:
            if isinstance(text, OpaqueText):
                return text.replace(old, new, *count)
            return otherwise(context, text, old, new, *count)

        return replace


def _same(value: object) -> object:
    return value


def _joined_values(values: Iterable[object]) -> str:
    return joined(map(as_text, values))


def _true_of_texts(test: Function) -> Function:
    def tested(value: object) -> object:
        return isinstance(value, OpaqueText) or test(value)

    return tested


def _holds_text(value: object) -> bool:
    """Return whether an opaque text is in `value`, or may be: not all can be looked into."""
    if isinstance(value, OpaqueText):
        return True
    if value is None or isinstance(value, str | int | float | jinja2.Undefined | Macro):
        return False
    if isinstance(value, dict):
        return any(map(_holds_text, cast("dict[str, object]", value).values()))
    if isinstance(value, list | tuple):
        return any(map(_holds_text, cast("list[object]", value)))
    return True
