"""Containers as kvmesh's own command line reads them: what it refuses, a cluster would crash on.

Every argument and variable of a container is parsed by `kvmesh.cli`, which reads cyclopts'
dataclasses: unknown flags, values out of bounds and words that are none of a list are refused.
"""

import functools
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from kvmesh.cli import app, check_environment, name_unknown
from kvmesh.settings.spellings import read_spellings

Manifest = dict[str, Any]
PREFIX: Final = "KVMESH_"
FIELDS: Final[Mapping[str, str]] = {
    "metadata.name": "pod-0",
    "metadata.namespace": "kvmesh",
    "metadata.uid": "3ab1c6a2-0f0e-4c1e-8a5e-0d6a0c9c7e11",
    "metadata.labels['kvmesh/bucket']": "chat",
    "spec.nodeName": "node-0",
    "status.podIP": "10.244.0.2",
    "status.hostIP": "172.18.0.2",
}
"""What the downward API would put in, by field."""

_REFERENCE: Final = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


@dataclass(frozen=True)
class Line:
    """A container's command line and variables, all references filled in."""

    name: str
    arguments: list[str]
    own: dict[str, str]
    """Variables of its `env`."""
    shared: dict[str, str]
    """Variables of the ConfigMaps of its `envFrom`, which several roles read."""

    @property
    def variables(self) -> dict[str, str]:
        """Return all variables; those of `env` count before those of `envFrom`."""
        return self.shared | self.own


def read_line(container: Manifest, manifests: list[Manifest]) -> Line:
    """Return a container's line. Raises `KeyError` for a ConfigMap or a field that is not there,
    `ValueError` for a `$(NAME)` that no variable before it defines.
    """
    maps = {
        one["metadata"]["name"]: one.get("data") or {}
        for one in manifests
        if one["kind"] == "ConfigMap"
    }
    shared: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        if "configMapRef" in source:
            shared |= maps[source["configMapRef"]["name"]]
    own: dict[str, str] = {}
    for one in container.get("env") or ():
        own[one["name"]] = _value(one, shared | own, maps)
    arguments = [_expand(word, shared | own) for word in container.get("args") or ()]
    return Line(container["name"], arguments, own, shared)


def _value(variable: Manifest, known: Mapping[str, str], maps: Mapping[str, Manifest]) -> str:
    if "valueFrom" not in variable:
        return _expand(variable["value"], known)
    match variable["valueFrom"]:
        case {"fieldRef": {"fieldPath": path}}:
            return FIELDS[path]
        case {"configMapKeyRef": {"name": name, "key": key}}:
            return str(maps[name][key])
        case {"secretKeyRef": {"name": _, "key": _}}:
            return "secret"
        case {"resourceFieldRef": {"resource": _}}:
            return "1"
        case other:
            raise ValueError(f"{variable['name']}: {other}: no source that is known here")


def _expand(text: str, known: Mapping[str, str]) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{text!r}: arguments and variables are texts")

    def fill(match: re.Match[str]) -> str:
        if match[1] not in known:
            raise ValueError(f"{text}: no variable before it is called {match[1]}")
        return known[match[1]]

    return _REFERENCE.sub(fill, text)


def parse_line(line: Line) -> Any:
    """Return the settings that kvmesh reads from a container's line.

    Raises what the command line raises for a flag or value that it refuses, and `ValueError` for a
    `KVMESH_` variable of the container's own that is no setting of its command.
    """
    unknown = [
        name
        for name in line.own
        if name.startswith(PREFIX) and name not in variables_of(line.arguments[0])
    ]
    if unknown:
        raise ValueError(f"{line.name}: {unknown}: no settings of kvmesh {line.arguments[0]}")
    return _parse(tuple(line.arguments), tuple(sorted(line.variables.items())))


@functools.cache
def _parse(arguments: tuple[str, ...], variables: tuple[tuple[str, str], ...]) -> Any:
    with _environment(dict(variables)):
        name_unknown(os.environ)
        check_environment(os.environ)
        tokens = read_spellings(arguments)
        _, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    return bound.arguments.get("settings", bound.arguments)


@functools.cache
def variables_of(command: str) -> set[str]:
    """Return the variables that `kvmesh COMMAND` reads."""
    found = app[command]
    names = {
        name
        for one in found.assemble_argument_collection().filter_by(parse=True)
        for name in one.names
    }
    return {
        PREFIX + name.removeprefix("--").replace("-", "_").upper()
        for name in names
        if name.startswith("--")
    } | {f"{PREFIX}CONFIG"}


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    for name in [name for name in before if name.startswith(PREFIX)]:
        del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
