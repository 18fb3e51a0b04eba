"""All figures: what overviews show of them, and the tables of docs/reference/metrics.md."""

from typing import Final, Literal, Never

from kvmesh.app.views.figure import Shown, Table
from kvmesh.app.views.front_figures import (
    META,
    META_ENDS,
    META_HOMES,
    META_REPLICAS,
    POOL,
    SITE_DIGESTS,
    SITES,
    SPANS,
    TOKENS,
    URLS,
)
from kvmesh.app.views.mesh_figures import (
    APPROX,
    BOOKINGS,
    HEARD,
    HEARING,
    HEARTBEATS,
    INDEX,
    JOURNAL,
    PEERS,
    SNAPSHOTS,
    TRUST,
    UNREAD,
    VERSIONS,
)
from kvmesh.app.views.other_names import render_others
from kvmesh.app.views.pick_figures import GATEWAYS, PICKS, UNWATCHED
from kvmesh.app.views.policy_figures import POLICIES
from kvmesh.app.views.process_figures import BUILD, INTERNAL_ERRORS
from kvmesh.app.views.program_figures import PRESSURES, PROGRAM_NEWS, PROGRAMS, TOUCHES, WARMED
from kvmesh.app.views.request_figures import (
    ADMISSION,
    FORMULAS,
    INSIGHT,
    REQUESTS,
    SHADOWS,
    SHARES,
    SLO,
    STREAMS,
    TOTALS,
)
from kvmesh.app.views.scaling_figures import DRAINS, MARKS, SCALING
from kvmesh.app.views.sidecar_figures import SIDECAR, SIDECAR_RANKS
from kvmesh.app.views.usage_figures import LIMITS, USAGE, USAGE_RECORD
from kvmesh.app.views.worker_figures import (
    ACCESSES,
    ENGINES,
    PREDICTIONS,
    REPLICA_CARE,
    WORKER_CARE,
    WORKERS,
)

TABLES: Final[tuple[Table[Never], ...]] = (
    *(REQUESTS, STREAMS, TOTALS, INSIGHT, ADMISSION, SHARES, FORMULAS, SHADOWS, WORKERS),
    ENGINES,
    *(PROGRAMS, PRESSURES, PROGRAM_NEWS, TOUCHES, WARMED),
    *(PREDICTIONS, ACCESSES, WORKER_CARE, SCALING, DRAINS, MARKS, SLO),
    *(INDEX, APPROX, HEARD, JOURNAL, SNAPSHOTS, PEERS, HEARTBEATS, BOOKINGS, HEARING, TRUST),
    *(VERSIONS, UNREAD, USAGE, USAGE_RECORD, LIMITS),
    *(TOKENS, URLS, PICKS, GATEWAYS, UNWATCHED, POOL, SPANS),
    *(META, META_ENDS, META_HOMES, META_REPLICAS, REPLICA_CARE, POLICIES, INTERNAL_ERRORS, BUILD),
    *(SITES, SITE_DIGESTS),
    *(SIDECAR, SIDECAR_RANKS),
)

Rows = Literal["workers", "replicas", "buckets"]


def shown_figures(*labels: str) -> list[tuple[Shown, str]]:
    """Return how the figures of tables with exactly these labels are shown, with their meaning."""
    figures = [one for table in TABLES if table.labels == labels for one in table.figures]
    return [(one.shown, one.text) for one in figures if one.shown is not None]


OF_WORKERS: Final = [one for one, _ in shown_figures("worker")]
OF_REPLICAS: Final = [one for one, _ in shown_figures()]
COLUMNS: Final[dict[Rows, list[Shown]]] = {
    "workers": OF_WORKERS,
    "replicas": OF_REPLICAS,
    "buckets": [one for one in (*OF_WORKERS, *OF_REPLICAS) if one.bucket is not None],
}
"""What each row of an overview has, in the order in which it is drawn."""


def render_metrics() -> str:
    """Return the tables of docs/reference/metrics.md."""
    lines = ["| name | type | labels | meaning |", "|---|---|---|---|"]
    metrics = [
        (one.metric, one.kind, (*table.labels, *one.labels), one.text)
        for table in TABLES
        for one in table.figures
        if one.metric
    ]
    for name, kind, labels, text in sorted(metrics):
        words = ", ".join(f"`{label}`" for label in sorted(labels))
        lines.append(f"| `{name}` | {kind} | {words} | {text} |")
    lines += render_others()
    lines += [
        "",
        "## In the overview",
        "Numbers of the rows of `/v1/overview`: each is a field of the row, or an entry of its",
        "`figures`. The dashboard and `kvmesh top` show a column for those with a title there.",
        "`replicas` is how a meta-router combines what several replicas say of one worker (first:",
        "that of the replica with most requests there), `bucket` how the rows of a bucket are.",
        "",
        "| row | field | dashboard | top | replicas | bucket | meaning |",
        "|---|---|---|---|---|---|---|",
    ]
    for row, labels in (("worker", ("worker",)), ("replica", ())):
        for one, text in shown_figures(*labels):
            combined = one.replicas if labels else ""
            cells = (row, f"`{one.key}`", one.dashboard, one.top, combined, one.bucket or "", text)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
