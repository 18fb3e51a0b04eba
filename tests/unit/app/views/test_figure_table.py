import re

from kvmesh.app.views.figure_table import COLUMNS, TABLES, render_metrics
from kvmesh.app.views.overview import ReplicaRow, WorkerRow


def test_no_name_is_given_twice() -> None:
    metrics = [one.metric for table in TABLES for one in table.figures if one.metric]

    assert len(set(metrics)) == len(metrics)
    for shown in COLUMNS.values():
        keys = [one.key for one in shown if one.dashboard or one.top]
        assert len(set(keys)) == len(keys)


def test_buckets_tell_the_figures_of_workers_and_replicas_apart() -> None:
    keys = [one.key for one in COLUMNS["buckets"]]

    assert len(set(keys)) == len(keys)


def test_a_row_has_no_field_of_text_under_a_figures_name() -> None:
    worker = {"worker", "bucket", "url", "models", "trust", "why_not", "stage"}
    replica = {"replica", "bucket", "url", "reason", "created", "digest", "scope", "agreement"}

    assert worker < set(WorkerRow.__struct_fields__)
    assert replica < set(ReplicaRow.__struct_fields__)
    assert not worker & {one.key for one in COLUMNS["workers"]}
    assert not replica & {one.key for one in COLUMNS["replicas"]}


def test_each_figure_is_one_row_of_the_docs() -> None:
    page = render_metrics()

    rows = re.findall(r"^\| `(kvmesh_\w+)` \|", page, re.MULTILINE)

    assert rows == sorted(one.metric for table in TABLES for one in table.figures if one.metric)
    assert "| worker | `cached_blocks` | Blocks cached | cached | max |  | KV blocks" in page
    assert "| replica | `queued` |  |  |  | sum | Requests held" in page
