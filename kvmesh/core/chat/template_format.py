"""Whether a chat template wants a message's content as a string or as a list of parts.

Engines look for a loop over the content in the template's syntax tree. The answer decides how
they pass every message, so it must be found their way, oddities included: this is the most thorough
one; an engine that looks otherwise does so in its own folder.
"""

from collections.abc import Iterator

from jinja2 import nodes

from kvmesh.core.chat.syntax import reads, syntax_tree
from kvmesh.core.chat.template_call import ContentFormat


def looped_format(source: str) -> ContentFormat:
    """Return `openai` if a loop, be it in a macro, runs over the content of a message.

    Source: vLLM 0.32 `renderers/hf.py`, `_iter_nodes_assign_content_item`.
    """
    tree = syntax_tree(source)
    message_names = set(_message_names(tree))
    bound, in_macros = _macro_loops(tree, message_names)
    for loop in tree.find_all(nodes.For):
        if any(reads(loop.iter, name, "content") for name in message_names):
            return "openai"
        if not isinstance(loop.iter, nodes.Name):
            continue
        if loop.iter.name in bound.get(id(loop), ()):
            return "openai"
        if loop.iter.name == "content" and id(loop) not in in_macros:
            return "openai"
    return "string"


def _message_names(tree: nodes.Template) -> Iterator[str]:
    """Yield the loop variables that run over `messages` or a variable assigned from it."""
    lists = ["messages"]
    for name in lists:
        for assign in tree.find_all(nodes.Assign):
            target = assign.target
            if isinstance(target, nodes.Name) and reads(assign.node, name):
                lists += [] if target.name in lists else [target.name]
    for loop in tree.find_all(nodes.For):
        if isinstance(loop.target, nodes.Name) and any(reads(loop.iter, n) for n in lists):
            yield loop.target.name


def _macro_loops(
    tree: nodes.Template, message_names: set[str]
) -> tuple[dict[int, set[str]], set[int]]:
    """Return the parameters bound to a message's content, per loop inside a macro, and the loops.

    Loops are named by `id()`: syntax tree nodes compare by value.
    """
    bound: dict[int, set[str]] = {}
    in_macros: set[int] = set()
    for macro in tree.find_all(nodes.Macro):
        parameters = _content_parameters(tree, macro, message_names)
        for loop in macro.find_all(nodes.For):
            in_macros.add(id(loop))
            bound[id(loop)] = parameters
    return bound, in_macros


def _content_parameters(
    tree: nodes.Template, macro: nodes.Macro, message_names: set[str]
) -> set[str]:
    """Return the macro's parameters that some call binds to a message's content."""
    names = [argument.name for argument in macro.args]
    found: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
            continue
        pairs = [*zip(names, call.args, strict=False)]
        pairs += [(keyword.key, keyword.value) for keyword in call.kwargs if keyword.key in names]
        for parameter, value in pairs:
            if any(reads(value, name, "content") for name in message_names):
                found.add(parameter)
    return found
