from dataclasses import fields
from typing import Any

import pytest
from cyclopts import App, CycloptsError

from kvmesh.settings.requests import FailureSettings
from kvmesh.settings.types import (
    BlockSize,
    Count,
    NonNegative,
    Port,
    Positive,
    Seconds,
    Share,
    Temperature,
    is_fixed,
)

WHOLE: list[Any] = [Port, Positive, Count, BlockSize]
KINDS: list[Any] = [*WHOLE, NonNegative, Seconds, Share, Temperature]


def read(kind: Any, text: str) -> Any:
    app = App(result_action="return_value")

    def take(*, value: kind) -> Any:
        return value

    app.default(take)
    return app(f"--value={text}", exit_on_error=False, print_error=False)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e400", "1e308", "9" * 25, "9" * 5000])
def test_no_setting_is_beyond_all_bounds(kind: Any, text: str) -> None:
    with pytest.raises(CycloptsError):
        read(kind, text)


@pytest.mark.parametrize("kind", [Port, Positive, Count, NonNegative, Seconds, Share, Temperature])
def test_plain_numbers_are_taken(kind: Any) -> None:
    assert read(kind, "1") == 1


def test_a_constant_is_no_setting() -> None:
    assert {one.name for one in fields(FailureSettings) if is_fixed(one)} == {
        "retry_budget",
        "wait_for_worker_s",
    }
