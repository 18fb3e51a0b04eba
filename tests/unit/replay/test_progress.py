from io import StringIO

from rich.console import Console

from kvmesh_lab.replay.progress import RunProgress, show_progress
from tests.unit.report.replay_reports import failure, outcome


def test_figures_are_those_of_what_has_ended() -> None:
    state = RunProgress(10)
    state.sent = 4
    state.take(outcome(0, ttft_ms=100, cached=500))
    state.take(outcome(1, ttft_ms=200, cached=0))
    state.take(failure(2, "timeout", ""))

    text = state.describe()

    assert text == "1 open · hit 25.0% · TTFT p50 150 p90 190 ms · [red]1 failed[/red]"


def test_nothing_known_is_nothing_said() -> None:
    assert RunProgress(1).describe() == "0 open"


async def test_a_terminal_shows_a_bar_that_reaches_the_end() -> None:
    console = Console(file=StringIO(), force_terminal=True, width=160)
    state = RunProgress(2)

    async with show_progress(console, "kv", state, enabled=True):
        state.sent = 2
        state.take(outcome(0, ttft_ms=1, cached=0))
        state.take(outcome(1, ttft_ms=1, cached=0))

    assert isinstance(console.file, StringIO)
    assert "2/2" in console.file.getvalue()


async def test_no_terminal_and_no_wish_show_nothing() -> None:
    for console, enabled in (
        (Console(file=StringIO()), True),
        (Console(file=StringIO(), force_terminal=True), False),
    ):
        async with show_progress(console, "kv", RunProgress(1), enabled=enabled):
            pass

        assert isinstance(console.file, StringIO)
        assert console.file.getvalue() == ""
