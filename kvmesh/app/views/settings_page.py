"""`/admin/settings`: what a process runs with, without what is secret."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Final, Literal

import msgspec

from kvmesh.app.front.front import Routes, answer_json
from kvmesh.app.front.viewers import Viewers
from kvmesh.settings.types import group_of, is_fixed
from kvmesh.transport.http.server.exchange import Exchange

PATH: Final = "/admin/settings"
MOST_CHARS: Final = 512
"""Of one value: lists of workers have no end."""

_LOGIN: Final = re.compile(r"://[^/@\s'\"]*@")
_BREAK: Final = re.compile(r"([\s'\"])")


class SettingRow(msgspec.Struct, frozen=True):
    """A setting by the name of its flag. `source` says where `value` comes from: it was set when
    the process started, or changed while it runs.
    """

    name: str
    title: str
    value: str
    default: str
    source: Literal["default", "set", "changed"]


class ProcessSettings(msgspec.Struct, frozen=True):
    """All settings of one process."""

    name: str
    role: str
    settings: list[SettingRow]


class SettingsView(msgspec.Struct, frozen=True):
    """The processes whose settings are known, own first."""

    processes: list[ProcessSettings]


class SettingsPage:
    """Answers for one process; `running` has what was changed since it started, by names of
    settings.
    """

    def __init__(
        self,
        name: str,
        role: str,
        settings: object,
        running: Callable[[], Mapping[str, object]],
        viewers: Viewers,
    ) -> None:
        self._name = name
        self._role = role
        self._settings = settings
        self._running = running
        self._viewers = viewers

    def own(self) -> ProcessSettings:
        """Return the settings of this process."""
        rows = setting_rows(self._settings, self._running())
        return ProcessSettings(self._name, self._role, list(rows))

    def mount(self, routes: Routes) -> None:
        """Serve the path."""
        routes.add("GET", PATH, self._show)

    def _show(self, exchange: Exchange) -> None:
        self._viewers.refuse_tenants(exchange.request)
        answer_json(exchange, SettingsView([self.own()]))


def setting_rows(
    settings: object, running: Mapping[str, object], title: str = ""
) -> Iterator[SettingRow]:
    """Yield the row of each setting, those of a dataclass that a field holds in its place."""
    assert is_dataclass(settings)
    for field in fields(settings):
        if is_fixed(field) and field.name not in running:
            continue
        group, value = group_of(field), getattr(settings, field.name)
        above = title if group is None else group.name
        if is_dataclass(value):
            yield from setting_rows(value, running, above)
            continue
        now = running.get(field.name, value)
        default = _default_of(field)
        source: Literal["default", "set", "changed"] = "default" if value == default else "set"
        yield SettingRow(
            name=field.name.replace("_", "-"),
            title=above,
            value=shown_value(now),
            default=shown_value(default),
            source="changed" if now != value else source,
        )


def _default_of(field: "Field[Any]") -> object:
    if field.default is not MISSING:
        return field.default
    return "" if field.default_factory is MISSING else field.default_factory()


def shown_value(value: object) -> str:
    """Return a value in words, "" for none; what URLs hold for a login is left out."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple | list):
        return ", ".join(shown_value(one) for one in value)[:MOST_CHARS]
    text = "" if value is None else str(value)
    words = _BREAK.split(_LOGIN.sub("://…@", text))
    return "".join(map(_without_query, words))[:MOST_CHARS]


def _without_query(word: str) -> str:
    before, mark, _ = word.partition("?")
    return f"{before}?…" if mark and "://" in before else word
