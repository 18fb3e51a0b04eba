"""Templates that print messages one by one, and what of a chat each of these prints depends on.

The prints of messages that stand as they did before are known: only the others are run again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, Final, TypeGuard, cast

import jinja2
from jinja2 import nodes
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing
from jinja2.visitor import NodeVisitor

from kvmesh.core.chat.chat import JsonObject

Place = tuple[int, ...]
"""What differs for two stands of a message whose prints may differ."""

Choose = Callable[[Sequence[object]], Sequence[int]]
"""Which messages to print, in order, told the values that their prints depend on."""

MARK: Final = "\ue000NEXT MESSAGE\ue001"
"""Stands in front of each message that is printed, and behind the last."""

_PICK: Final = "kvmesh_pick"
_FOREIGN: Final = (nodes.Block, nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport)
_CHANCE: Final = frozenset(("lipsum", "random"))
_ALL: Final = nodes.Name("messages", "load")
_LOOP: Final = nodes.Name("loop", "load")
_HERE: Final = nodes.Getattr(_LOOP, "index0", "load")
_PLACES: Final = (
    (nodes.Const(0), "start"),
    (nodes.Sub(_HERE, nodes.Const(1)), "before"),
    (nodes.Add(_HERE, nodes.Const(1)), "after"),
)
_OF_LOOP: Final = {
    **dict.fromkeys(("first", "index", "index0"), "position"),
    "previtem": "before",
    "nextitem": "after",
    "last": "after",
}


class _Reads(NodeVisitor):
    """What a loop's body reads besides its message: `about` has its position, the messages before
    and after it, that at the start; `names` are all names. Not `local`: other messages, too, or
    what the body itself changes.
    """

    def __init__(self, body: Iterable[nodes.Node]) -> None:
        self.about: set[str] = set()
        self.names: set[str] = set()
        self.local = True
        self._depth = 0
        for node in body:
            self.visit(node)

    def _note(self, what: str | None) -> None:
        self.local = self.local and what is not None
        self.about.add(what or "")

    def visit_For(self, node: nodes.For) -> None:  # noqa: N802  jinja2's name
        self.visit(node.iter)
        self._depth += 1
        for one in (node.target, *node.body, *node.else_, *filter(None, [node.test])):
            self.visit(one)
        self._depth -= 1

    def visit_Getattr(self, node: nodes.Getattr) -> None:  # noqa: N802
        if self._depth or node.node != _LOOP:
            self.generic_visit(node)
        else:
            self._note(_OF_LOOP.get(node.attr))

    def visit_Getitem(self, node: nodes.Getitem) -> None:  # noqa: N802
        if self._depth or node.node != _ALL:
            self.generic_visit(node)
        else:
            self._note(next((what for place, what in _PLACES if node.arg == place), None))

    def visit_Name(self, node: nodes.Name) -> None:  # noqa: N802
        self.names.add(node.name)
        if node.name in {_ALL.name, *_CHANCE} or (node.name == _LOOP.name and not self._depth):
            self._note(None)

    def visit_Filter(self, node: nodes.Filter) -> None:  # noqa: N802
        if node.name in _CHANCE:
            self._note(None)
        self.generic_visit(node)

    def visit_NSRef(self, _node: nodes.NSRef) -> None:  # noqa: N802
        self._note(None)

    def visit_Break(self, _node: nodes.Break) -> None:  # noqa: N802
        if not self._depth:
            self._note(None)


class _Picked(list[JsonObject]):
    """Messages, of which a loop visits some."""

    def __init__(self, messages: Sequence[JsonObject], places: Sequence[int]) -> None:
        super().__init__(messages)
        self.places = places

    def __iter__(self) -> Iterator[JsonObject]:
        return iter([self[place] for place in self.places])


class _PickedLoop(LoopContext):
    """Jinja's `loop`, which says of picked messages where they stand among all."""

    def __init__(self, iterable: Sequence[JsonObject], *rest: object, **named: object) -> None:
        super().__init__(iterable, *rest, **named)  # type: ignore[arg-type]  # passed on
        self._picked = iterable if isinstance(iterable, _Picked) else None
        self._places = iter(() if self._picked is None else self._picked.places)

    def __next__(self) -> tuple[object, LoopContext]:
        if (picked := self._picked) is None:
            return super().__next__()
        self.index0 = place = next(self._places)
        self._before, self._current = picked[place - 1], picked[place]
        self._iterator = iter(cast("list[Any]", picked[place + 1 : place + 2]))
        self._after = missing
        return self._current, self


class MessageLoop:
    """A template that prints its messages by one loop, each by itself and by what `about` names."""

    def __init__(self, template: jinja2.Template, about: frozenset[str]) -> None:
        self._template = template
        self._about = about

    def places(self, numbers: list[int], context: int) -> list[Place]:
        """Return for each message what differs where its print may: `numbers` tell messages apart,
        `context` all else that prints depend on.
        """
        about, all_alike = self._about, [context] * len(numbers)
        if not about:
            return [(context,)] * len(numbers)
        start = [numbers[0]] * len(numbers) if "start" in about else all_alike
        before = [numbers[-1], *numbers[:-1]] if "before" in about else all_alike
        after = [*numbers[1:], 0] if "after" in about else all_alike
        position = range(len(numbers)) if "position" in about else all_alike
        return list(zip(all_alike, start, before, after, position, strict=True))

    def run(self, variables: Mapping[str, object], choose: Choose) -> list[str] | None:
        """Return what is printed in front of all messages, of each chosen, and behind them; None
        where that cannot be told apart. Raises what templates raise.
        """
        chosen: Sequence[int] = ()

        def pick(messages: list[JsonObject], *values: object) -> _Picked:
            nonlocal chosen
            chosen = choose(values)
            return _Picked(messages, chosen)

        texts = self._template.render(**variables, **{_PICK: pick}).split(MARK)
        return texts if len(texts) == len(chosen) + 2 else None


def find_message_loop(
    environment: ImmutableSandboxedEnvironment, source: str, functions: Mapping[str, object]
) -> MessageLoop | None:
    """Return the loop of a template, None for one that prints messages in another way."""
    tree = environment.parse(source)
    loop = next((node for node in reversed(tree.body) if _visits_messages(node)), None)
    if loop is None or any(tree.find(one) for one in _FOREIGN):
        return None
    others = [node for node in tree.body if node is not loop]
    macros = [node for node in others if isinstance(node, nodes.Macro)]
    stored = frozenset(name for node in others if node not in macros for name in _names_set(node))
    reads = _Reads(loop.body)
    if any(node.find(nodes.Macro) for node in others) or _ALL.name in stored:
        return None
    if not reads.local or not all(_is_closed(macro, stored) for macro in macros):
        return None
    outside = (reads.names - {cast("nodes.Name", loop.target).name}) & stored
    values = [nodes.Name(name, "load") for name in sorted(outside)]
    mark = nodes.Output([nodes.TemplateData(MARK)])
    loop.iter = nodes.Call(nodes.Name(_PICK, "load"), [loop.iter, *values], [], None, None)
    loop.body = [mark, *loop.body]
    tree.body.insert(tree.body.index(loop) + 1, mark)
    tree.set_environment(environment)
    template = environment.from_string(tree, globals=dict(functions))
    template.globals = dict(template.globals)
    code = cast("FunctionType", template.root_render_func).__globals__
    code.update(LoopContext=_PickedLoop)
    return MessageLoop(template, frozenset(reads.about))


def _names_set(node: nodes.Node) -> Iterator[str]:
    """Yield what a part of a template gives values to."""
    yield from (name.name for name in node.find_all(nodes.Name) if name.ctx != "load")
    yield from (name.name for name in node.find_all(nodes.NSRef))


def _is_closed(macro: nodes.Macro, stored: frozenset[str]) -> bool:
    """Return whether a macro reads nothing that changes."""
    reads = _Reads([macro])
    free = reads.names - {argument.name for argument in macro.args}
    return reads.local and not reads.about and free.isdisjoint(stored)


def _visits_messages(node: nodes.Node) -> TypeGuard[nodes.For]:
    """Return whether a loop visits all messages, one after the other."""
    if not isinstance(node, nodes.For) or not isinstance(node.target, nodes.Name):
        return False
    return node.iter == _ALL and not (node.test or node.else_ or node.recursive)
