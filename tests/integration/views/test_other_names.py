"""Dashboards of others, shown what a router answers to `/metrics?names=…`."""

import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from kvmesh.app.views.figure_table import TABLES
from kvmesh.app.views.other_names import BOOKS, LACKING, LACKING_LABELS, OTHERS
from tests.integration.support import live_router
from tests.integration.support.waiting import until
from tests.integration.views.test_metrics import value

pytestmark = pytest.mark.integration

FIXTURES = Path(__file__).parents[2] / "fixtures/conventions"
DASHBOARDS: dict[str, Any] = tomllib.loads((FIXTURES / "dashboards.toml").read_text())
SUFFIXES = ("_bucket", "_sum", "_count")


def families(text: str) -> dict[str, Metric]:
    return {one.name: one for one in text_string_to_metric_families(text)}


async def test_what_dashboards_of_others_read_is_there_or_named_as_lacking() -> None:
    """Each series and each of its labels; that nothing is said to lack that there is."""
    async with (
        live_router.mockers(2) as engines,
        live_router.client_of(live_router.router([one.url for one in engines])) as client,
    ):
        body = {"model": "mock", "max_tokens": 3, "prompt": "Once upon a time. " * 20}
        for stream in (False, True, True):
            await client.post("/v1/completions", json=body | {"stream": stream})
        pages = {book: await page(client, book) for book in BOOKS}
        several = families((await client.get("/metrics?names=gen_ai,vllm&names=llm_d")).text)

    without_buckets = {
        name for one in OTHERS if "no buckets" in one.note for _, name in one.pairs()
    }
    lacking: dict[str, set[str]] = {}
    used: set[str] = set()
    for board, asked in DASHBOARDS.items():
        labels: dict[str, set[str]] = {}
        for book in asked["names"]:
            for metric in pages[book].values():
                for one in metric.samples:
                    labels.setdefault(one.name, set()).update(one.labels)
        for series, needed in asked["series"].items():
            plain = next((series.removesuffix(one) for one in SUFFIXES if series.endswith(one)), "")
            if LACKING.keys() & {series, plain}:
                assert series not in labels, series
                used |= LACKING.keys() & {series, plain}
            elif plain in without_buckets and series.endswith("_bucket"):
                assert series not in labels
            else:
                missing = {*needed} - labels.get(series, {"no such series"})
                used |= missing & LACKING_LABELS.keys()
                lacking[f"{board}: {series}"] = missing - LACKING_LABELS.keys()
    assert {series: labels for series, labels in lacking.items() if labels} == {}
    assert {*LACKING, *LACKING_LABELS} - used == {"streaming"}

    assert {"gen_ai_client_token_usage", "llm_d_epp_request"} <= several.keys()
    assert not any(name.startswith("inference_") for name in several)
    for usage, ours in (("input", "prompt"), ("output", "output")):
        fixed = {
            "gen_ai_operation_name": "inference",
            "gen_ai_provider_name": "kvmesh",
            "gen_ai_request_model": "mock",
            "gen_ai_original_model": "mock",
            "gen_ai_token_type": usage,
        }
        theirs = value(several, "gen_ai_client_token_usage_sum", **fixed)
        assert theirs == value(several, f"kvmesh_request_{ours}_tokens_sum") > 0
    workers = {one.labels["server"] for one in several["vllm:num_requests_running"].samples}
    assert workers == {"w0", "w1"}
    assert value(pages["inference"], "inference_pool_ready_pods", name="default") == 2


async def page(client: httpx.AsyncClient, book: str) -> dict[str, Metric]:
    """Return a page once its two streams are counted."""

    async def counted() -> dict[str, Metric] | None:
        found = families((await client.get("/metrics", params={"names": book})).text)
        first = value(found, "kvmesh_time_to_first_token_seconds_count")
        return found if first == 2 else None

    found: dict[str, Metric] = await until(counted)
    return found


def test_names_of_llm_d_are_those_of_its_catalog() -> None:
    known = tomllib.loads((FIXTURES / "llm_d.toml").read_text())["names"].split()
    ours = {name for other in OTHERS for book, name in other.pairs() if book == "llm_d"}
    bare = {name.removeprefix("llm_d_epp_") for name in ours}

    assert bare - {*known} - {one.removesuffix("_total") for one in known} == set()


def test_what_others_are_made_of_exists_with_its_labels() -> None:
    known = {one.metric: {*table.labels, *one.labels} for table in TABLES for one in table.figures}
    for other in OTHERS:
        assert {other.where[0], other.kept[0]} - {""} <= known[other.of], other.of


async def test_a_meta_router_names_the_routers_that_have_them() -> None:
    async with (
        live_router.mockers() as (engine,),
        live_router.router([engine.url]) as replica,
        live_router.client_of(live_router.meta_router([f"chat={replica}"])) as client,
    ):
        plain = (await client.get("/metrics")).text
        asked = (await client.get("/metrics?names=gen_ai,vllm")).text

    words = f"a meta-router has none of these, scrape its routers: {replica}"
    assert asked.endswith(f"\n# names=gen_ai,vllm: {words}\n")
    assert words not in plain
    assert families(asked).keys() == families(plain).keys()
