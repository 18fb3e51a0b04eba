"""Settings as rows: nested ones, what was changed, and nothing that is secret."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from kvmesh.app.views.settings_page import MOST_CHARS, SettingRow, setting_rows, shown_value
from kvmesh.settings.types import Fixed


@dataclass(frozen=True)
class Inner:
    most_rows: int = 3
    """How many."""
    kept: Annotated[int, Fixed] = 5
    """No setting."""


@dataclass(frozen=True)
class Outer:
    name: str
    """Who."""
    inner: Annotated[Inner, Parameter(group=(Group("Inside"),))] = field(default_factory=Inner)


def test_each_setting_is_a_row_under_its_title_with_where_its_value_is_from() -> None:
    rows = [*setting_rows(Outer("a", Inner(4)), {})]

    assert rows == [
        SettingRow("name", "", "a", "", "set"),
        SettingRow("most-rows", "Inside", "4", "3", "set"),
    ]
    assert [one.source for one in setting_rows(Inner(), {})] == ["default"]


def test_what_was_changed_while_it_runs_is_told_even_of_what_is_no_setting() -> None:
    rows = [*setting_rows(Inner(), {"most_rows": 9, "kept": 6})]

    assert rows == [
        SettingRow("most-rows", "", "9", "3", "changed"),
        SettingRow("kept", "", "6", "5", "changed"),
    ]


def test_values_are_words_without_logins_and_queries_and_have_an_end() -> None:
    urls = ("w0=http://user:swordfish@gpu:8000/x?token=swordfish", "nats://swordfish@host")

    assert shown_value(urls) == "w0=http://…@gpu:8000/x?…, nats://…@host"
    assert (shown_value(True), shown_value(False), shown_value(None)) == ("on", "off", "")
    assert shown_value(Path("/keys")) == "/keys"
    assert len(shown_value("x" * 9999)) == len(shown_value(["y"] * 9999)) == MOST_CHARS
