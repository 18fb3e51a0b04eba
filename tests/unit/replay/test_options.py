import dataclasses
from pathlib import Path
from typing import Any

import pytest

from kvmesh.errors import ConfigError
from kvmesh_lab.replay.options import ReplayOptions, check_options

OPTIONS = ReplayOptions(trace=Path("t.jsonl"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"url": "localhost:8000"}, "--url"),
        ({"url": "http://h:1/v1/"}, "without /v1"),
        ({"reset_engine": ("ftp://h",)}, "--reset-engine"),
        ({"requests": 0}, "--requests 0"),
        ({"speedup": 0.0}, "--speedup"),
        ({"concurrency": -1}, "--concurrency"),
        ({"timeout_s": 0.0}, "--timeout"),
        ({"skip": -1}, "--skip"),
        ({"settle_s": -1.0}, "--settle"),
        ({"compare": ("kv", "kv")}, "each policy once"),
        ({"compare": ("kv:best",)}, "best"),
        ({"compare": ("random:lmetric",)}, "only kv takes a cost"),
        ({"compare": ("kv:predicted-time:contention=1",)}, "--kv-cost"),
        ({"compare": ("kv:temperature=warm",)}, "no number"),
        ({"compare": ("kv:temperature=-1",)}, "0 or more"),
        ({"bucket": ("a", "b")}, "--bucket-by"),
        ({"bucket_by": "session"}, "buckets' names"),
        ({"prompt_unit": "token-ids"}, "--endpoint completions"),
        ({"plot": Path("x.gif")}, r"\.svg"),
        ({"json": Path("/nonexistent/r.json")}, "directory does not exist"),
    ],
)
def test_values_that_cannot_work_are_refused_by_flag(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_options(dataclasses.replace(OPTIONS, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"url": "https://gateway.example/team-a"},
        {"bucket": ("a", "b"), "bucket_by": "prefix"},
        {"prompt_unit": "token-ids", "endpoint": "completions"},
        {"compare": ("round-robin", "kv"), "plot": Path("x.png"), "requests": 1},
    ],
)
def test_values_that_work_are_taken(changes: dict[str, Any]) -> None:
    check_options(dataclasses.replace(OPTIONS, **changes))


def test_the_slo_is_taken_from_the_options() -> None:
    slo = dataclasses.replace(OPTIONS, slo_ttft_ms=500.0).slo()

    assert (slo.ttft_ms, slo.itl_ms) == (500, 100)
