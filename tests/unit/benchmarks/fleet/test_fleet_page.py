from benchmarks.cost.page import Run
from benchmarks.fleet.bench_fleet import Case, play
from benchmarks.fleet.costs import PlaneCosts, RequestCosts, costs_from
from benchmarks.fleet.page import law_row, page
from benchmarks.fleet.plane import Fleet

TITLE = "processor time a request, with KV events, 4 KB, 64 in flight"
LINES = [
    b'{"facts":{"commit":"1234567"}}',
    *(
        f'{{"title":"{TITLE}","candidate":"4 KB","figure":"{figure}","median":{value}}}'.encode()
        for figure, value in (
            ("alone us", 40.0),
            ("meta us", 50.0),
            ("replica us", 80.0),
            ("sibling us", 20.0),
            ("bytes", 400.0),
        )
    ),
]


def test_a_goal_that_is_met_is_bold() -> None:
    row = law_row(Run(LINES), "with KV events", "4 KB")

    assert row == ["4 KB", "40.0", "80.0", "20.0", "0.250", "**400**", "1.60", "2.29", "2.91"]


def test_what_was_not_measured_has_no_row() -> None:
    assert law_row(Run(LINES), "without KV events", "4 KB") == []


def test_the_page_has_the_law_and_the_fleet() -> None:
    case = Case("small", "4 KB", Fleet(workers=2, replicas=2, requests_s=200.0))
    outcome = play(case, RequestCosts(80.0, 20.0, 400.0, 4.0), PlaneCosts(), 0.5)

    text = page(Run(LINES), [outcome], *costs_from(LINES))

    assert "commit 1234567" in text
    assert "| 4 KB | 40.0 | 80.0 |" in text
    assert "| small | 4 KB |" in text
    assert "What breaks first" in text
    assert "| request | 1 replicas | 2 replicas |" in text
