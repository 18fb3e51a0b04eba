"""Engine pods marked with what losing each would cost, at an API server over real HTTP."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kvmesh.actors.messages import RouterHeartbeat, WorkerHeartbeat, WorkerLoad
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.app.picker.kube_api import connect
from kvmesh.app.picker.kube_objects import DELETION_COST
from kvmesh.app.process.running import Stop
from kvmesh.app.router import pod_marks
from kvmesh.app.router.pod_marks import MARKER, MOST_CHANGES, PodMarks, marks_of
from kvmesh.app.router.replicas import run_replicas
from kvmesh.app.views.program_rows import Programs
from kvmesh.app.views.scaling_figures import read_drain_costs
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.insight.pod_costs import LEAVES
from kvmesh.errors import ConfigError
from kvmesh.settings.features import PoolSettings
from kvmesh.settings.roles import NatsSettings, RouterSettings
from tests.chaos.process import fixed_ports
from tests.integration.kube import api_server
from tests.integration.kube.api_server import ApiServer, pod
from tests.integration.support import live_router
from tests.integration.support.live_router import mockers
from tests.integration.support.waiting import seen, until
from tests.unit.app.serve.test_routed import Routing

pytestmark = pytest.mark.integration

PODS = api_server.pods_path()
ENGINE = {"kvmesh/engine": "true", "kvmesh/bucket": "b"}


def engine_pod(name: str, ip: str, *, cost: str | None = None, **status: Any) -> dict[str, Any]:
    made = pod(name, ip)
    made["metadata"]["labels"] |= ENGINE
    made["status"] |= status
    if cost is not None:
        made["metadata"]["annotations"][DELETION_COST] = cost
    return made


def replica(name: str, **more: Any) -> RouterHeartbeat:
    return RouterHeartbeat(router=name, bucket="b", url="http://r", ready=True, epoch=1, **more)


class Marking:
    """A replica r1 of the bucket b that marks pods at `api`; its clock is `now`."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.routing = Routing()
        self.context = self.routing.context
        self.replicas: list[RouterHeartbeat] = [replica("r1"), replica("r2")]
        self.context.router.heartbeats.clear()
        self.alone_tokens: dict[WorkerId, float] = {}
        self.marks = PodMarks(
            connect(asker=MARKER), self.context, lambda: self.replicas, self.costs
        )

    def run_engine(self, name: str, host: str, blocks: int) -> None:
        """Have a worker whose requests take so many blocks."""
        worker = WorkerId(name)
        self.routing.scheduler.workers.membership.add(worker, self.routing.now)
        load = WorkerLoad(used_blocks=blocks, total_blocks=1 << 20)
        self.context.router.heartbeats[worker] = WorkerHeartbeat(
            worker, "b", 1, 0, f"http://{host}:8000", (), 16, load=load
        )

    def costs(self) -> Mapping[WorkerId, float]:
        return read_drain_costs(self.context, Programs(), self.alone_tokens)

    def cost(self, *names: str) -> int:
        costs = self.costs()
        return int(1000.0 * sum(costs[WorkerId(name)] for name in names))

    async def look(self, after_s: float = 0.0) -> bool:
        """Look, if that is due after so long; return whether it was."""
        self.routing.now += after_s
        due = self.marks.due()
        if due:
            await self.marks.look()
        return due

    def marked(self) -> dict[str, str | None]:
        """Return what the pods are marked with."""
        return {
            name: (one["metadata"]["annotations"] or {}).get(DELETION_COST)
            for name, one in self.api.objects[PODS].items()
        }

    def requests(self) -> dict[str, int]:
        return {" ".join(what): count for what, count in self.marks.figures().requests.items()}


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    async with api_server.running(PODS) as (server, port):
        monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig(tmp_path, port)))
        yield server


@pytest.fixture
async def marking(api: ApiServer) -> AsyncIterator[Marking]:
    made = Marking(api)
    yield made
    await made.marks._api.close()


async def test_pods_are_marked_with_the_cost_of_their_engines(marking: Marking) -> None:
    api = marking.api
    for number in range(1, 5):
        await api.put(PODS, engine_pod(f"vllm-{number}", f"10.0.0.{number}"))
    await api.put(PODS, pod("web", "10.0.0.9"))
    marking.run_engine("vllm-1", "10.0.0.1", 9000)
    marking.run_engine("two-dp0", "10.0.0.2", 2000)
    marking.run_engine("two-dp1", "10.0.0.2", 4000)
    marking.run_engine("web", "10.0.0.9", 4000)
    marking.run_engine("by-name", "vllm-3.vllm", 4000)

    assert await marking.look()

    assert marking.marked() == {
        "vllm-1": str(marking.cost("vllm-1")),
        "vllm-2": str(marking.cost("two-dp0", "two-dp1")),
        "vllm-3": None,
        "vllm-4": None,
        "web": None,
    }
    assert marking.cost("vllm-1") > marking.cost("two-dp0", "two-dp1") > 1000
    assert [list(given) for _, given in api.patched] == [[DELETION_COST]] * 2
    assert marking.requests() == {"list done": 1, "patch done": 2}
    assert marking.marks.warnings() == ()
    shown = marking.marks.describe()
    assert (shown["namespace"], shown["selector"], shown["leads"]) == ("llm", ENGINE, True)
    assert (shown["pods"], shown["marked"]) == (4, 2)


async def test_an_engine_that_alone_keeps_prefixes_is_not_marked_as_free(marking: Marking) -> None:
    for name, host in (("idle", "10.0.0.1"), ("keeper", "10.0.0.2")):
        marking.run_engine(name, host, 0)
        await marking.api.put(PODS, engine_pod(name, host))
    marking.alone_tokens[WorkerId("keeper")] = 100_000.0

    await marking.look()

    marks = {name: int(mark or 0) for name, mark in marking.marked().items()}
    assert marks["keeper"] == marking.cost("keeper") > marks["idle"]


async def test_what_is_about_right_is_not_patched_and_lists_come_once_a_minute(
    marking: Marking,
) -> None:
    api = marking.api
    for number, blocks in ((1, 5000), (2, 6000)):
        marking.run_engine(f"w{number}", f"10.0.0.{number}", blocks)
        about = marking.cost(f"w{number}") * 9 // 10
        await api.put(PODS, engine_pod(f"vllm-{number}", f"10.0.0.{number}", cost=str(about)))

    assert await marking.look()
    assert not await marking.look(1.9)
    assert not await marking.look(50.0)
    assert await marking.look(8.2)

    assert marking.requests() == {"list done": 2}


async def test_a_worker_told_to_drain_is_marked_at_once_and_marked_back(marking: Marking) -> None:
    for number in (1, 2):
        await marking.api.put(PODS, engine_pod(f"vllm-{number}", f"10.0.0.{number}"))
        marking.run_engine(f"w{number}", f"10.0.0.{number}", 5000 * number)
    await marking.look()
    membership = marking.context.workers.membership

    membership.hold("w2", draining=True)
    assert await marking.look(2.0)
    drained = marking.marked()
    membership.hold("w2", draining=False)
    assert await marking.look(2.0)

    assert drained == {"vllm-1": str(marking.cost("w1")), "vllm-2": str(LEAVES)}
    assert marking.marked()["vllm-2"] == str(marking.cost("w2"))
    assert marking.requests() == {"list done": 1, "patch done": 4}


async def test_an_order_that_changes_much_is_marked_before_its_minute(marking: Marking) -> None:
    for number in (1, 2):
        await marking.api.put(PODS, engine_pod(f"vllm-{number}", f"10.0.0.{number}"))
        marking.run_engine(f"w{number}", f"10.0.0.{number}", 5000 * number)
    await marking.look()

    marking.run_engine("w1", "10.0.0.1", 50_000)
    assert not await marking.look(9.9)
    assert await marking.look(0.1)

    assert marking.marked()["vllm-1"] == str(marking.cost("w1"))


async def test_only_the_replica_that_leads_marks(marking: Marking) -> None:
    marks = marking.marks

    def leads(*replicas: RouterHeartbeat) -> bool:
        marking.replicas = [*replicas]
        return marks.leads()

    assert leads()
    assert leads(replica("r1"), replica("r2"))
    assert not leads(replica("r1"), replica("r0"))
    assert leads(replica("r1"), replica("r0", draining=True))
    assert not leads(replica("r1", draining=True), replica("r2"))
    assert leads(replica("r1"), replica("a", picker=True))
    assert not leads(replica("r1", picker=True), replica("r2"))


async def test_the_lead_is_followed_and_lost_in_the_middle(
    marking: Marking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_marks, "LOOK_S", 0.02)
    api = marking.api
    for number in (1, 2, 3):
        await api.put(PODS, engine_pod(f"vllm-{number}", f"10.0.0.{number}"))
        marking.run_engine(f"w{number}", f"10.0.0.{number}", 5000 * number)
    marking.replicas = [replica("r1"), replica("r0")]
    running = asyncio.ensure_future(marking.marks.run())
    await asyncio.sleep(0.1)
    assert api.log == []
    assert marking.marks.figures().pods == 0

    def lead_again() -> None:
        marking.replicas[1] = replica("r0")

    api.on_patch = lead_again
    marking.replicas[1] = replica("r0", draining=True)
    await until(lambda: bool(api.patched))
    await until(lambda: marking.marks.figures().pods == 0)
    assert len(api.patched) == 1

    marking.replicas = [replica("r1")]
    api.on_patch = lambda: None
    await until(lambda: len(api.patched) == 3)
    running.cancel()
    await asyncio.wait([running])
    assert None not in marking.marked().values()


async def test_addresses_of_pods_that_ended_or_leave_are_others_by_now(marking: Marking) -> None:
    api = marking.api
    await api.put(PODS, engine_pod("a-live", "10.0.0.1"))
    await api.put(PODS, engine_pod("b-done", "10.0.0.1", phase="Succeeded"))
    await api.put(PODS, engine_pod("c-failed", "10.0.0.1", phase="Failed"))
    leaving = engine_pod("d-leaving", "10.0.0.1")
    leaving["metadata"]["deletionTimestamp"] = "2026-11-30T10:00:00Z"
    await api.put(PODS, leaving)
    await api.put(PODS, engine_pod("six", "10.0.0.6", podIPs=[{"ip": "fd00::6"}]))
    for name in ("host-a", "host-b"):
        await api.put(PODS, engine_pod(name, "10.1.0.1"))
    marking.run_engine("w", "10.0.0.1", 5000)
    marking.run_engine("of-six", "[FD00:0::6]", 5000)
    marking.run_engine("host-a", "10.1.0.1", 5000)
    marking.run_engine("somebody", "10.1.0.1", 7000)

    await marking.look()

    given = {name for name, cost in marking.marked().items() if cost is not None}
    assert given == {"a-live", "six", "host-a"}
    (warning,) = marking.marks.warnings()
    assert warning.startswith("somebody: pod not marked with its drain cost: several pods share ")


@pytest.mark.parametrize(
    "hostile",
    [
        {"metadata": {"name": "../../nodes/n", "labels": ENGINE}, "status": {"podIP": "10.0.0.1"}},
        {"metadata": {"name": "A b\r\nx: y", "labels": ENGINE}, "status": {"podIP": "10.0.0.1"}},
        {"metadata": {"name": "x", "labels": ENGINE}, "status": {"podIP": "10.0.0.1", "phase": 7}},
        {"metadata": {"name": "x", "labels": ENGINE}, "status": {"podIP": "fe80::1%lo"}},
        {"metadata": {"name": "x", "labels": ENGINE}, "status": {"podIP": "127.1"}},
        {"metadata": {"name": "x", "labels": ENGINE}, "status": None},
        {"metadata": {"name": "x" * 9000, "labels": ENGINE}},
        {"metadata": {"name": "x", "labels": ENGINE, "annotations": [1]}},
    ],
)
async def test_a_pod_that_no_server_can_have_meant_is_left_alone(
    marking: Marking, hostile: dict[str, Any]
) -> None:
    marking.api.objects[PODS]["hostile"] = hostile
    await marking.api.put(PODS, engine_pod("vllm", "10.0.0.2"))
    marking.run_engine("w1", "10.0.0.1", 9000)
    marking.run_engine("w2", "10.0.0.2", 5000)

    await marking.look()

    assert [name for name, _ in marking.api.patched] == ["vllm"]


@pytest.mark.parametrize("written", ["9" * 26, "-2147483648", "1.5", "", "\u0663", "x" * 9000])
async def test_a_mark_that_is_no_number_of_kubernetes_is_written_anew(
    marking: Marking, written: str
) -> None:
    await marking.api.put(PODS, engine_pod("vllm", "10.0.0.1", cost=written))
    marking.run_engine("w", "10.0.0.1", 5000)

    await marking.look()

    assert marking.marked() == {"vllm": str(marking.cost("w"))}


@pytest.mark.parametrize("asked", [PODS, "PATCH"])
async def test_who_may_not_is_told_which_role_it_takes(marking: Marking, asked: str) -> None:
    await marking.api.put(PODS, engine_pod("vllm", "10.0.0.1"))
    marking.run_engine("w", "10.0.0.1", 5000)
    marking.api.refusals[asked] = (403, "the account may not")

    await marking.look()

    (warning, *refused) = marking.marks.warnings()
    for words in ("403", "the account may not", "list and patch pods", "components/mark-pods"):
        assert words in warning
    assert len(refused) == (asked == "PATCH")
    assert "dear to lose" in warning
    assert marking.requests()["list refused" if asked == PODS else "patch refused"] == 1
    assert marking.marked() == {"vllm": None}

    marking.api.refusals.clear()
    assert not await marking.look(1.0)
    await marking.look(20.0)
    await marking.look(60.0)

    assert marking.marks.warnings() == ()
    assert marking.marked() == {"vllm": str(marking.cost("w"))}


async def test_one_pod_that_is_refused_or_gone_keeps_no_other_from_its_mark(
    marking: Marking,
) -> None:
    api = marking.api
    for number, status in enumerate((404, 409, 422, None, 403, None), 1):
        await api.put(PODS, engine_pod(f"vllm-{number}", f"10.0.0.{number}"))
        marking.run_engine(f"w{number}", f"10.0.0.{number}", 50_000 // number)
        if status is not None:
            api.refusals[f"{PODS}/vllm-{number}"] = (status, "not this one")

    await marking.look()

    assert marking.marked()["vllm-4"] == str(marking.cost("w4"))
    assert marking.marked()["vllm-6"] == str(marking.cost("w6"))
    assert marking.requests() == {
        "list done": 1,
        "patch done": 2,
        "patch gone": 1,
        "patch refused": 3,
    }
    (warning,) = marking.marks.warnings()
    assert warning.startswith("vllm-2, vllm-3, vllm-5: pod not marked with its drain cost: ")
    assert "403: not this one" in warning
    assert not await marking.look(2.0)  # they are not tried again before the next list
    api.refusals.clear()
    await marking.look(60.0)
    assert None not in marking.marked().values()
    assert marking.marks.warnings() == ()


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_server_that_cannot_now_is_asked_later_and_later(
    marking: Marking, status: int
) -> None:
    await marking.api.put(PODS, engine_pod("vllm", "10.0.0.1"))
    marking.run_engine("w", "10.0.0.1", 5000)
    marking.api.refusals[PODS] = (status, "busy")
    tries = 0

    for _ in range(3600):
        tries += await marking.look(1.0)

    assert 12 <= tries <= 30
    marking.api.refusals.clear()
    marking.api.refusals["PATCH"] = (status, "busy")
    await marking.look(300.0)
    assert f"{status}: busy" in marking.marks.warnings()[0]
    marking.api.refusals.clear()
    await marking.look(300.0)
    await marking.look(60.0)
    assert marking.marked() == {"vllm": str(marking.cost("w"))}


async def test_a_server_that_is_away_or_talks_rubbish_changes_nothing(
    marking: Marking, monkeypatch: pytest.MonkeyPatch
) -> None:
    marking.run_engine("w", "10.0.0.1", 5000)
    monkeypatch.setattr("kvmesh.app.picker.kube_api.ANSWER_S", 0.2)
    marking.api.objects[PODS] = {"x": {"metadata": {}}}
    marking.api.hangs = True
    await marking.look()
    assert "no answer for pods of namespace llm in time" in marking.marks.warnings()[0]

    marking.api.hangs = False
    marking.api.cut()
    await marking.look(20.0)
    (unlabelled,) = marking.marks.warnings()
    assert (
        "no pod of namespace llm with the labels kvmesh/engine=true,kvmesh/bucket=b" in unlabelled
    )

    await marking.api.stop()
    await marking.look(60.0)
    assert marking.requests()["list failed"] == 2


async def test_a_look_that_takes_too_long_is_given_up(
    marking: Marking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_marks, "MOST_S", 2.0)
    for number in (1, 2, 3):
        await marking.api.put(PODS, engine_pod(f"vllm-{number}", f"10.0.0.{number}"))
        marking.run_engine(f"w{number}", f"10.0.0.{number}", 5000 * number)

    def slow_down() -> None:
        marking.api.patch_s = 60.0

    marking.api.on_patch = slow_down

    await marking.look()

    assert "pods not listed and marked in 2 s" in marking.marks.warnings()[0]
    assert marking.requests() == {"list done": 1, "patch done": 1, "patch failed": 1}


async def test_an_answer_without_end_is_not_read(
    marking: Marking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvmesh.app.picker.kube_api.MOST_LINE_BYTES", 100)
    await marking.api.put(PODS, engine_pod("vllm", "10.0.0.1"))
    marking.run_engine("w", "10.0.0.1", 5000)

    await marking.look()

    assert "an answer of more than 100 bytes" in marking.marks.warnings()[0]


async def test_ten_thousand_pods_are_marked_so_many_at_a_time(marking: Marking) -> None:
    for number in range(10_000):
        ip = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        marking.api.objects[PODS][f"p{number}"] = engine_pod(f"p{number}", ip)
    for number in range(200):
        marking.run_engine(f"w{number}", f"10.0.0.{number}", 5000 + 100 * number)

    assert await marking.look()
    first = [name for name, _ in marking.api.patched]
    assert await marking.look(2.0)
    for _ in range(10):
        await marking.look(2.0)

    assert first == [f"p{number}" for number in range(199, 199 - MOST_CHANGES, -1)]
    assert len({name for name, _ in marking.api.patched}) == len(marking.api.patched) == 200
    assert marking.requests() == {"list done": 1, "patch done": 200}
    assert marking.marks.describe()["pods"] == 10_000


async def test_a_router_marks_and_shows_it(api: ApiServer) -> None:
    settings = PoolSettings(mark_pods=True)
    await api.put(PODS, {**engine_pod("vllm", "127.0.0.1", cost="5000")})
    async with mockers(1) as (one,):
        serving = live_router.router([one.url], bucket="b", pool=settings)
        async with live_router.client_of(serving) as client:
            await seen(client, "/v1/status", lambda page: page["pod_marks"]["marked"] == 1)
            metrics = (await client.get("/metrics")).text
            api.refusals[PODS] = api.refusals["PATCH"] = (403, "no")
            drained = await client.post("/admin/drain", json={"worker": "w0", "draining": True})
            ready = await seen(client, "/ready", lambda page: "403" in str(page))

    assert "kvmesh_marked_pods 1.0" in metrics
    assert 'kvmesh_pod_mark_requests_total{request="list",result="done"} 1.0' in metrics
    assert drained.status_code == 202
    assert any("list and patch pods" in line for line in ready["warnings"])


async def test_a_router_marks_a_pod_that_is_told_to_drain_within_seconds(api: ApiServer) -> None:
    await api.put(PODS, engine_pod("vllm", "127.0.0.1"))
    async with mockers(1) as (one,):
        serving = live_router.router([one.url], bucket="b", pool=PoolSettings(mark_pods=True))
        async with live_router.client_of(serving) as client:
            await client.post("/admin/drain", json={"worker": "w0", "draining": True})
            await until(lambda: bool(api.patched))

    assert api.patched == [("vllm", {DELETION_COST: str(LEAVES)})]


async def test_of_two_replicas_one_marks_and_the_other_goes_on_when_it_leaves(
    api: ApiServer, tmp_path: Path
) -> None:
    server = NatsServer(tmp_path / "store", port=fixed_ports(1)[0])
    await server.start()
    nats = NatsSettings(nats_url=server.url)
    made = engine_pod("vllm", "127.0.0.1", cost="5000")
    made["metadata"]["labels"]["kvmesh/bucket"] = "default"
    await api.put(PODS, made)
    pool = PoolSettings(mark_pods=True)
    try:
        async with (
            mockers(1) as (one,),
            live_router.sidecar(one.url, nats),
            live_router.replica(nats, "r-b", pool=pool) as second,
        ):
            async with live_router.replica(nats, "r-a", pool=pool) as first:
                await seen(second, "/v1/status", lambda page: not page["pod_marks"]["leads"])
                await seen(first, "/v1/status", lambda page: page["pod_marks"]["marked"] == 1)
                assert (await second.get("/v1/status")).json()["pod_marks"]["marked"] == 0
                api.patched.clear()
                await second.post("/admin/drain", json={"worker": "w", "draining": True})
                await until(lambda: bool(api.patched))
                await asyncio.sleep(2 * pod_marks.LOOK_S)
                assert api.patched == [("vllm", {DELETION_COST: str(LEAVES)})]
            await second.post("/admin/drain", json={"worker": "w", "draining": False})
            await seen(second, "/v1/status", lambda page: page["pod_marks"]["marked"] == 1)
            await until(lambda: len(api.patched) > 1)
    finally:
        await server.stop()

    assert api.patched[1:] == [("vllm", {DELETION_COST: "0"})]


def test_without_the_extra_it_is_said_what_to_install() -> None:
    script = """
import sys
sys.modules["httpx2"] = None
from kvmesh.app.router.program_part import find_marks
from kvmesh.settings.features import PoolSettings
from kvmesh.settings.roles import NatsSettings, RouterSettings
find_marks(RouterSettings(pool=PoolSettings(mark_pods=True)))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)

    said = "--mark-pods needs httpx2: pip install 'kvmesh[kubernetes]'"
    assert said in ended.stderr.decode()


async def test_what_cannot_work_is_refused_before_anything_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = PoolSettings(mark_pods=True)
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig(tmp_path, 1, "two words")))
    with pytest.raises(ConfigError, match="--mark-pods: 'two words' is no namespace"):
        marks_of(RouterSettings(pool=pool))
    with pytest.raises(ConfigError, match="kvmesh/bucket=_b: give --bucket"):
        marks_of(RouterSettings(pool=pool, bucket="_b"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="--mark-pods: no API server is known"):
        marks_of(RouterSettings(pool=pool))
    alone = RouterSettings(pool=pool, processes=2, worker=("http://e:1",))
    with pytest.raises(ConfigError, match="--mark-pods --processes 2: without --nats-url"):
        await run_replicas(alone, Stop())
