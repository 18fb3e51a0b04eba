"""The syntax of chat templates: Jinja in a sandbox, with the extensions `transformers` adds."""

from typing import Final, cast

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment


class GenerationTag(Extension):
    """Lets `{% generation %}` stand in a template; it marks training masks and renders its body."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it as a plain set on the instance

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the body wrapped in a call, so that it keeps its own variable scope."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("render_body"), [], [], body).set_lineno(line)

    def render_body(self, caller: Macro) -> str:
        """Return the rendered body unchanged."""
        return caller()


EXTENSIONS: Final = (GenerationTag, loopcontrols)
"""What `transformers` adds to Jinja's syntax."""


_DICT_NAMES: Final = frozenset(dir(dict))


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, which looks for a key of a message where a dict has no such attribute: it would
    do that after an exception, at 1 us each, several a message.
    """

    def getattr(self, obj: object, attribute: str) -> object:
        """Return an attribute or an item, undefined where there is neither."""
        if type(obj) is dict and attribute not in _DICT_NAMES:
            fields = cast("dict[object, object]", obj)
            if attribute in fields:
                return fields[attribute]
            return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


def new_environment() -> ImmutableSandboxedEnvironment:
    """Return what compiles a template that can neither reach Python nor change its arguments."""
    return ChatEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[*EXTENSIONS])


def syntax_tree(source: str) -> nodes.Template:
    """Return the tree of a template that compiles."""
    return new_environment().parse(source)


def reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Return whether `node` is `name` or `name.key`, behind any filters, tests and slices."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getattr):
        return node.attr == key and reads(node.node, name)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return bool(node.arg.value == key) and reads(node.node, name)
    return False
