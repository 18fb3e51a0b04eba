"""/metrics of real routers: true, and docs/reference/metrics.md explains it."""

import re
from pathlib import Path

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from kvmesh.app.meta.command import MetaServer
from kvmesh.app.process.build import in_words, own_build
from kvmesh.app.router.command import RouterServer
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.requests import DecisionSettings
from kvmesh.settings.roles import MetaRouterSettings, RouterSettings
from tests.integration.mesh.test_mesh import RunningMesh, eventually, mesh  # noqa: F401  the fixture is used by name
from tests.integration.picker import live_picker
from tests.integration.picker.asking import chat, serve
from tests.integration.support import live_router
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[3] / "docs/reference/metrics.md"
OF_PICKERS = ("kvmesh_pick", "kvmesh_gateway_", "kvmesh_unwatched_")
PROMPT = "What everybody asks about, again and again. " * 40
OF_TOUCHES = ("kvmesh_program_touch", "kvmesh_program_prompt_bytes")
"""With `--re-touch on`."""


def families(text: str) -> dict[str, Metric]:
    found = text_string_to_metric_families(text)
    return {one.name: one for one in found if one.name.startswith("kvmesh_")}


def documented() -> dict[str, str]:
    rows = re.findall(r"^\| `(kvmesh_\w+)` (\|.*)$", PAGE.read_text(), re.MULTILINE)
    return dict(rows)


def undocumented(metrics: dict[str, Metric]) -> list[str]:
    """Return the rows that docs/reference/metrics.md lacks."""
    known = documented()
    rows = {name: row_of(metric, known.get(name, "")) for name, metric in metrics.items()}
    return [f"| `{name}` {row}" for name, row in rows.items() if known.get(name) != row]


def row_of(metric: Metric, known: str) -> str:
    """Return the row that explains a metric; labels that no sample shows are as in `known`."""
    labels = sorted({name for sample in metric.samples for name in sample.labels} - {"le"})
    shown = ", ".join(f"`{name}`" for name in labels)
    if not metric.samples and known:
        shown = known.split("|")[2].strip()
    return f"| {metric.type} | {shown} | {metric.documentation} |"


def value(metrics: dict[str, Metric], sample: str, **labels: str) -> float:
    for metric in metrics.values():
        for one in metric.samples:
            if one.name == sample and one.labels == labels:
                return one.value
    pytest.fail(f"no {sample} {labels}")


async def metrics_when_counted(client: httpx.AsyncClient, requests: int) -> dict[str, Metric]:
    """Return the metrics once so many requests are in them: ended ones are read in slices."""
    read = {"stage": "end", "result": "read"}

    async def counted() -> dict[str, Metric] | None:
        metrics = families((await client.get("/metrics")).text)
        found = value(metrics, "kvmesh_insight_records_total", **read)
        return metrics if found == requests else None

    metrics: dict[str, Metric] = await until(counted)
    return metrics


async def test_what_is_counted_is_what_happened() -> None:
    async with (
        live_router.mockers() as (engine,),
        live_router.client_of(live_router.router([engine.url])) as client,
    ):
        for number in range(4):
            body = {"model": "mock", "max_tokens": 3, "prompt": PROMPT + str(number)}
            assert (await client.post("/v1/completions", json=body)).status_code == 200
        body = {"model": "mock", "max_tokens": 3, "prompt": PROMPT, "stream": True}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        metrics = await metrics_when_counted(client, 5)
        status = (await client.get("/v1/status")).json()
        (worker,) = (await client.get("/v1/overview")).json()["workers"]
        truth = engine.ranks[0].statistics()

    assert value(metrics, "kvmesh_worker_accesses_total", worker="w0", usage="told") == 5
    assert value(metrics, "kvmesh_worker_accesses_total", worker="w0", usage="untold") == 0
    tokens = value(metrics, "kvmesh_worker_accessed_tokens_total", worker="w0")
    assert value(metrics, "kvmesh_worker_accessed_blocks_total", worker="w0") * 16 == tokens
    assert 4 * len(PROMPT) - 4 * 16 <= tokens <= truth.prefix_cache_hits
    assert status["accesses"]["w0"] == {
        "told": 5,
        "untold": 0,
        "tokens": tokens,
        "blocks": tokens / 16,
    }
    assert worker["figures"]["accessed_blocks"] == tokens / 16
    assert value(metrics, "kvmesh_requests_total", outcome="finished", status="2xx") == 5
    assert value(metrics, "kvmesh_decision_seconds_count", phase="decide") == 5
    assert value(metrics, "kvmesh_decision_seconds_count", phase="score") == 1
    assert value(metrics, "kvmesh_output_tokens_total") == 15
    best = value(metrics, "kvmesh_overlap_tokens_total", kind="best")
    assert best == value(metrics, "kvmesh_overlap_tokens_total", kind="predicted") > 3 * 1700
    assert value(metrics, "kvmesh_worker_usable", worker="w0") == 1
    assert value(metrics, "kvmesh_worker_cached_blocks", worker="w0") > 100
    assert "\n".join(undocumented(metrics)) == ""


async def test_every_metric_of_a_mesh_is_documented(mesh: RunningMesh) -> None:  # noqa: F811
    mesh.chat(PROMPT, headers={"x-kvmesh-bucket": "chat"})

    def settled() -> bool:
        shown = families(mesh.http.get(f"{mesh.router_url(0)}/metrics").text)
        return value(shown, "kvmesh_journal_caught_up") == value(shown, "kvmesh_peers") == 1

    eventually(settled, "the journal is read, the sibling known")
    metrics = families(mesh.http.get(f"{mesh.router_url(0)}/metrics").text)

    build = own_build()
    [reported] = metrics["kvmesh_build_info"].samples
    assert (reported.labels["version"], reported.labels["bookings"]) == (
        build.version,
        str(build.formats.bookings),
    )
    assert value(metrics, "kvmesh_members", role="router", version=build.version) == 2
    assert value(metrics, "kvmesh_members", role="worker", version=build.version) == 2
    overview = mesh.http.get(f"{mesh.router_url(0)}/v1/overview?limit=0").json()
    rows = [*overview["replicas"], *overview["workers"], overview]
    assert {one["version"] for one in rows} == {build.version}
    assert {one["formats"] for one in (*overview["replicas"], overview)} == {
        in_words(build.formats)
    }
    assert "\n".join(undocumented(metrics)) == "", "docs/reference/metrics.md lacks these rows"
    known = documented()
    sometimes = {
        name
        for name in known
        if name.startswith(
            (
                "kvmesh_snapshot_",
                "kvmesh_remote_",
                "kvmesh_pool_",
                "kvmesh_marked_pods",
                "kvmesh_pod_mark_",
                "kvmesh_otlp_",
                "kvmesh_sidecar_",
                "kvmesh_site_",
                *OF_PICKERS,
                *OF_TOUCHES,
            )
        )
    }
    predicted = {name for name in known if name.startswith("kvmesh_worker_")}
    front = families(mesh.http.get(f"{mesh.url}/metrics").text)
    assert "\n".join(undocumented(front)) == ""

    def ready() -> bool:
        shown = families(mesh.http.get(f"{mesh.url}/metrics").text)
        labels = {"bucket": "chat", "replica": "chat/chat-0"}
        return value(shown, "kvmesh_meta_replica_ready", **labels) == 1

    eventually(ready, "the meta-router counts the replica")
    assert set(known) - set(metrics) - set(front) <= sometimes | predicted


async def test_every_metric_of_a_picker_is_documented() -> None:
    async with live_picker.engines(1) as urls, live_picker.picker(urls) as live:
        await serve(live.gateway, live.client, chat(PROMPT), {})
        metrics = families((await live.views.get("/metrics")).text)
        others = (await live.views.get("/metrics?names=inference")).text
        described = (await live.views.get("/openapi.json")).json()

    assert "\n".join(undocumented(metrics)) == ""
    assert re.search(r'^inference_pool_ready_pods{name="\w+"} 1.0$', others, re.MULTILINE)
    assert described["openapi"] == "3.1.0"
    assert value(metrics, "kvmesh_picks_total", told="picked") == 1
    assert value(metrics, "kvmesh_picks_followed_total", until="to the end") == 1
    assert {name for name in documented() if name.startswith(OF_PICKERS)} <= set(metrics)


async def test_a_shadow_policy_is_asked_and_not_obeyed() -> None:
    shadows = DecisionSettings(shadow_policy=("kv:prefill-decode:overlap_score_weight=0",))
    async with (
        live_router.mockers(2) as engines,
        live_router.client_of(
            live_router.router([one.url for one in engines], decision=shadows)
        ) as client,
    ):
        workers = set()
        for number in range(3):
            body = {"model": "mock", "max_tokens": 1, "prompt": PROMPT + str(number)}
            answer = await client.post("/v1/completions", json=body)
            workers.add(answer.headers["x-kvmesh-worker"])
        metrics = await metrics_when_counted(client, 3)
        status = (await client.get("/v1/status")).json()

    assert len(workers) == 1
    (report,) = status["shadow_policies"]
    assert report["policy"] == shadows.shadow_policy[0]
    judged = {"policy": report["policy"], "kind": "judged"}
    assert value(metrics, "kvmesh_shadow_decisions_total", **judged) == report["decisions"] == 3
    assert "\n".join(undocumented(metrics)) == ""


async def test_an_admin_port_takes_the_admin_paths() -> None:
    port, admin = live_router.free_port(), live_router.free_port()
    settings = HttpSettings(http_port=port, admin_port=str(admin))
    async with (
        live_router.mockers() as (engine,),
        live_router.serving(
            RouterServer(
                RouterSettings(kv_events=False, worker=(f"w0={engine.url}",), http=settings)
            ).serve,
            f"http://127.0.0.1:{port}",
        ) as url,
        httpx.AsyncClient(timeout=60) as client,
    ):
        paths = ("/metrics", "/v1/status", "/admin/admission", "/ready", "/health")
        front = [(await client.get(url + path)).status_code for path in paths]
        own = f"http://127.0.0.1:{admin}"
        behind = [(await client.get(own + path)).status_code for path in paths]
        pages = ("/", "/dashboard/dashboard.js", "/v1/overview", "/v1/programs")
        shown = {
            (await client.get(base + path)).status_code for path in pages for base in (url, own)
        }

    assert shown == {200}
    assert front == [404, 404, 404, 200, 200]
    assert behind == [200, 200, 200, 200, 200], "kubelets probe here where the front door has mTLS"


async def test_a_meta_routers_admin_port_answers_probes_too() -> None:
    port, admin = live_router.free_port(), live_router.free_port()
    server = MetaServer(
        MetaRouterSettings(
            replica=("chat=http://127.0.0.1:1",),
            http=HttpSettings(http_port=port, admin_port=str(admin)),
        )
    )
    async with (
        live_router.serving(server.serve, f"http://127.0.0.1:{port}", path="/health") as url,
        httpx.AsyncClient(timeout=60) as client,
    ):
        answers = [
            (await client.get(f"{door}{path}")).status_code
            for path in ("/health", "/ready")
            for door in (url, f"http://127.0.0.1:{admin}")
        ]

    assert answers[:2] == [200, 200]
    assert answers[2] == answers[3]
