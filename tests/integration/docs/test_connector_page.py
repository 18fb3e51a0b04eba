"""The table of connectors in docs/workloads/prefill-decode.md is the one that routers go by."""

from pathlib import Path

from kvmesh.core.engines.handshake import Connector
from kvmesh.core.engines.registry import connectors

PAGE = Path(__file__).parents[3] / "docs/workloads/prefill-decode.md"
NEEDS = {"prefill-port": "of prefill workers", "decode-port": "of decode workers"}


def row(way: Connector) -> str:
    order = "at once" if way.beside else "behind the prefill's answer"
    ports = ", ".join(NEEDS[one] for one in way.needs) or "none"
    returns = ", ".join(f"`{one}`" for one in way.returns) or "none"
    asked = f"`GET {way.asks}`: its engine id" if way.asks else "none"
    cells = [
        *(f"`{way.name}`", way.title, order, ports, asked, returns),
        *("split" if way.many else "whole", "yes" if way.whole else "no"),
        f"{way.lease_s:g} s" if way.lease_s else "none",
    ]
    return f"| {' | '.join(cells)} |"


def test_the_page_has_a_row_for_each_connector() -> None:
    page = PAGE.read_text(encoding="utf-8")

    missing = [row(way) for way in connectors().values() if row(way) not in page]
    assert missing == []
