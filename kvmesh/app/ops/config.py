"""`kvmesh config ROLE`: the role's settings as a commented TOML file, made from the dataclasses.

`config/*.toml`, `docs/reference/configuration.md` and the tables of
`docs/reference/metrics.md` are its output, so they cannot disagree with `--help` and `/metrics`.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

from cyclopts import Group

from kvmesh.app.picker.envoy_bootstrap import encode
from kvmesh.app.picker.envoy_options import EXAMPLE
from kvmesh.app.views.figure_table import render_metrics
from kvmesh.app.views.openapi import document
from kvmesh.lab import PACKAGE, is_lab_installed, require_lab
from kvmesh.settings.picker import PickerSettings
from kvmesh.settings.roles import (
    MetaRouterSettings,
    RouterSettings,
    UpSettings,
    WorkerSettings,
)
from kvmesh.settings.types import group_of, is_fixed

Role = Literal["router", "picker", "meta-router", "worker", "mocker", "up"]
WITHIN: Final[Mapping[Role, Role]] = {"picker": "router"}
"""Roles that have every setting of another one, too."""


def command(role: Role | Literal["all", "metrics", "openapi", "envoy"]) -> None:
    """Print a commented TOML file with every setting of a role; of all: a Markdown page.

    metrics: the tables of every metric and of what the dashboard shows, as Markdown.
    openapi: the OpenAPI document that routers and meta-routers serve at /openapi.json.
    envoy: a configuration of Envoy in front of two pickers and two engines, to be edited.
    """
    if role == "metrics":
        sys.stdout.write(render_metrics())
    elif role == "openapi":
        sys.stdout.write(document().decode())
    elif role == "envoy":
        sys.stdout.write(encode(EXAMPLE).decode() + "\n")
    else:
        sys.stdout.write(render_markdown() if role == "all" else render_toml(role))


def find_roles() -> dict[Role, type]:
    """Return the settings of each role that is installed; the mocker is one of the laboratory."""
    lab = import_module(f"{PACKAGE}.mocker.settings") if is_lab_installed() else None
    return {
        "router": RouterSettings,
        "picker": PickerSettings,
        "meta-router": MetaRouterSettings,
        "worker": WorkerSettings,
        **({} if lab is None else {"mocker": lab.MockerSettings}),
        "up": UpSettings,
    }


def render_markdown() -> str:
    """Return every role's settings as tables: flag, default, meaning."""
    lines = [
        "# Configuration",
        "Made by `kvmesh config all`. A setting has one name and four spellings, weakest first:",
        "the default, `name = value` in a TOML file (`--config FILE`), `KVMESH_NAME` in the",
        "environment, `--name` on the command line. A switch is on as `--name`,",
        "off as `--no-name`, and takes a word, too: `--name true`, `--name false`.",
        "`--help` shows the settings used most, `--help-all` all of them, under the same titles.",
    ]
    roles = find_roles()
    for role, settings in roles.items():
        lines += ["", f"## kvmesh {role}"]
        known: set[str] = set()
        if whole := WITHIN.get(role):
            known.update(setting.name for setting in describe(roles[whole]))
            lines.append(f"All settings of `kvmesh {whole}`, and:")
        for title, found in by_title(s for s in describe(settings) if s.name not in known):
            lines += ["", f"### {title}", "| flag | default | meaning |", "|---|---|---|"]
            for _, name, text, default in found:
                shown = "" if default in ("", (), None) else f"`{toml_value(default)}`"
                needed = "*required*" if default is MISSING else shown
                lines.append(f"| `--{name}` | {needed} | {text.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def render_toml(role: Role) -> str:
    """Return the role's settings as TOML: every key commented out, at its default."""
    if role == "mocker":
        require_lab("`kvmesh config mocker`")
    settings = find_roles()[role]
    lines = [
        f"# kvmesh {role}: every setting at its default. Take the # off a line to change it.",
        f"# Use it with: kvmesh {role} --config {role}.toml; variables and flags win over it.",
    ]
    for title, found in by_title(describe(settings)):
        lines += ["", f"# --- {title} ---"]
        for _, name, text, default in found:
            lines += ["", *(f"# {line}" for line in textwrap.wrap(text, 90))]
            lines.append(f"#{name} = {toml_value(default)}")
    return "\n".join(lines) + "\n"


class Setting(NamedTuple):
    """A setting; `default` is `MISSING` where there is none."""

    group: Group
    name: str
    text: str
    default: object


def by_title(settings: Iterable[Setting]) -> Iterator[tuple[str, list[Setting]]]:
    """Yield the settings under each title, in the order of `--help`."""
    ordered = sorted(settings, key=lambda setting: cast("int", setting.group.sort_key))
    for group, found in groupby(ordered, lambda setting: setting.group):
        yield group.name, list(found)


def describe(settings: type, above: Group | None = None) -> Iterator[Setting]:
    """Yield each setting, those of a dataclass that a field holds in its place."""
    texts = attribute_texts(settings)
    for field in fields(settings):
        if is_fixed(field):
            continue
        default = default_of(field)
        group = group_of(field) or above
        if is_dataclass(default) and not isinstance(default, type):
            yield from describe(type(default), group)
        else:
            assert group is not None, f"{settings.__name__}.{field.name} stands under no title"
            yield Setting(group, field.name.replace("_", "-"), texts.get(field.name, ""), default)


def default_of(field: "Field[Any]") -> object:
    """Return the field's default, its factory called."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def attribute_texts(settings: type) -> dict[str, str]:
    """Return the string written below each attribute of the class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(settings))).body[0]
    assert isinstance(body, ast.ClassDef)
    texts: dict[str, str] = {}
    for before, after in zip(body.body, body.body[1:], strict=False):
        match before, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(t))
            ):
                texts[name] = " ".join(t.split())
            case _:
                pass
    return texts


def toml_value(value: object) -> str:
    """Return `value` in TOML; empty for "unset", since TOML has no null."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case str() | Path():
            return f'"{value}"'
        case tuple():
            items = cast("tuple[object, ...]", value)
            return f"[{', '.join(map(toml_value, items))}]"
        case _:
            return '""  # unset'
