"""What /metrics said, scrape by scrape, and which alarms Prometheus makes of it."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

ALERTS = Path(__file__).parents[3] / "deploy/prometheus/kvmesh-alerts.yml"
FIRING = 'count by (alertname) (ALERTS{alertstate="firing"})'
STEP_S = 15
"""Seconds that a scrape stands for: what takes seconds here takes minutes for the alarms."""


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool on this machine: apt-get install prometheus")
    return subprocess.run([found, *words], capture_output=True, text=True, check=False)


def alarm_names() -> set[str]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"]}


class AlarmHistory:
    """Series of all scrapes since the first, with `labels` as Prometheus would add them."""

    def __init__(self, **labels: str) -> None:
        self._labels = labels
        self._scrapes: list[dict[str, str]] = []

    async def scrape(self, client: httpx.AsyncClient) -> None:
        page = (await client.get("/metrics")).text
        found = {self._series("up", {}): "1"}
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name.startswith("kvmesh_") and not sample.name.endswith("_bucket"):
                    found[self._series(sample.name, sample.labels)] = repr(sample.value)
        self._scrapes.append(found)

    def last_s(self) -> int:
        """Return when the last scrape was, for promtool."""
        return STEP_S * (len(self._scrapes) - 1)

    def firing(self, folder: Path, *at_s: int) -> list[set[str]]:
        """Return the alarms that fire at each of these times."""
        names = sorted({name for scrape in self._scrapes for name in scrape})
        series = [
            {"series": name, "values": " ".join(one.get(name, "_") for one in self._scrapes)}
            for name in names
        ]
        # Nothing is expected, so that promtool says what it finds.
        asked = [{"expr": FIRING, "eval_time": f"{at}s", "exp_samples": []} for at in at_s]
        case: dict[str, Any] = {
            "interval": f"{STEP_S}s",
            "input_series": series,
            "promql_expr_test": asked,
        }
        path = folder / "history.test.yml"
        tests = {
            "rule_files": [str(ALERTS)],
            "evaluation_interval": f"{STEP_S}s",
            "tests": [case],
        }
        path.write_text(json.dumps(tests))
        done = promtool("test", "rules", path)
        reported = re.findall(
            r"time: (\w+),\s+exp:\s*(?:\[\]|nil)?\s+got:(.*)", done.stdout + done.stderr
        )
        assert done.returncode == 0 or reported, done.stdout + done.stderr
        found = {
            seconds(when): set(re.findall(r'alertname="(\w+)"', got)) for when, got in reported
        }
        return [found.get(at, set()) for at in at_s]

    def _series(self, name: str, labels: dict[str, str]) -> str:
        words = [f"{key}={json.dumps(text)}" for key, text in (self._labels | labels).items()]
        return f"{name}{{{','.join(words)}}}"


def seconds(text: str) -> int:
    """Return a duration as promtool writes it, e.g. 4m45s."""
    sizes = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * sizes[unit] for number, unit in re.findall(r"(\d+)([hms])", text))
