import re
from html.parser import HTMLParser

from kvmesh_lab.report.html import render_html
from tests.unit.report.replay_reports import comparison, outcome, report, run

SVG = '<svg viewBox="0 0 1 1"></svg>'
VOID = {"meta", "br", "link"}


class Nesting(HTMLParser):
    """Fails on tags that are closed in another order than they were opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_nested_and_asks_no_other_host() -> None:
    page = render_html(comparison(), SVG)

    nesting = Nesting()
    nesting.feed(page)
    assert nesting.open == []
    assert not re.search(r"<script|<link|src=|@import|url\(", page)


def test_the_page_shows_metrics_ratios_workers_errors_and_plots() -> None:
    page = render_html(comparison(), SVG)

    assert SVG in page
    for text in ("TTFT p90", "5.00 better", "w3", "http 503", "round-robin"):
        assert text in page


def test_names_from_outside_are_escaped() -> None:
    page = render_html(report(run("<b>kv</b>", outcome(0, ttft_ms=1, cached=5))), SVG)

    assert "<b>kv</b>" not in page
    assert "&lt;b&gt;kv" in page
    assert "&lt;model&gt;" in page
