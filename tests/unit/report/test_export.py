import csv
from pathlib import Path

import msgspec

from kvmesh_lab.report.export import write_csv, write_json
from tests.unit.report.replay_reports import comparison


def test_json_has_the_summary_and_every_request_of_each_run(tmp_path: Path) -> None:
    path = tmp_path / "report.json"

    write_json(comparison(), path)

    document = msgspec.json.decode(path.read_bytes())
    assert [found["name"] for found in document["runs"]] == ["round-robin", "kv"]
    assert document["runs"][1]["summary"]["errors"] == {"http 503": 1}
    assert document["runs"][0]["requests"][0]["itl_ms_mean"] == 12.5
    assert len(document["runs"][1]["requests"]) == 61


def test_csv_has_one_line_per_request(tmp_path: Path) -> None:
    path = tmp_path / "report.csv"

    write_csv(comparison(), path)

    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 121
    assert lines[0]["run"] == "round-robin"
    assert lines[0]["worker"] == "w0"
    assert lines[-1]["ttft_ms"] == ""
    assert lines[-1]["detail"] == "busy"
