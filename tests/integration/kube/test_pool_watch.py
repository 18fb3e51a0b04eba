"""An InferencePool watched at an API server over real HTTP, and what goes wrong there."""

import asyncio
import json
import random
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvmesh.app.picker import kube_mirror as mirror
from kvmesh.app.picker.kube_api import connect
from kvmesh.app.picker.pool import PoolWatch, watch_pool
from kvmesh.app.picker.pool_view import PoolName
from kvmesh.errors import ConfigError
from kvmesh.settings.features import PoolSettings
from tests.integration.kube import api_server
from tests.integration.kube.api_server import ApiServer, objective, pod, pool

pytestmark = pytest.mark.integration

PODS, POOLS = api_server.pods_path(), api_server.pools_path()
NEW, OLD = map(api_server.objectives_path, api_server.OBJECTIVES)


async def when(watch: PoolWatch, holds: Callable[[], bool]) -> None:
    """Wait until a pool is so; look again only when something came of it."""
    deadline = asyncio.get_running_loop().time() + 20.0
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, watch.describe()
        await asyncio.sleep(0.01)


def addresses(watch: PoolWatch) -> list[str]:
    return [one.address for one in watch.found.endpoints]


@pytest.fixture
async def api() -> AsyncIterator[tuple[ApiServer, int]]:
    async with api_server.running() as (server, port):
        yield server, port


@pytest.fixture
async def followed(
    api: tuple[ApiServer, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[ApiServer, PoolWatch]]:
    server, port = api
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig(tmp_path, port)))
    monkeypatch.setattr(mirror, "PAUSE_S", 0.05)
    monkeypatch.setattr(mirror, "PAUSE_MAX_S", 0.2)
    watch = watch_pool(PoolSettings(inference_pool="llm/chat"))
    running = asyncio.ensure_future(watch.run())
    yield server, watch
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()


async def test_ready_pods_times_target_ports_are_endpoints_and_follow_the_cluster(
    followed: tuple[ApiServer, PoolWatch],
) -> None:
    server, watch = followed
    await when(watch, lambda: "no such pool" in watch.why_not())
    await server.put(PODS, pod("vllm-0", "10.0.0.1"))
    await server.put(PODS, pod("vllm-1", "10.0.0.2", ready=False))
    await server.put(PODS, pod("web-0", "10.0.0.9", app="web"))
    await server.put(POOLS, pool("other", 1))

    await server.put(POOLS, pool("chat", 8000, 8001))
    await when(watch, lambda: addresses(watch) == ["10.0.0.1:8000", "10.0.0.1:8001"])
    assert [one.worker for one in watch.found.endpoints] == ["vllm-0-8000", "vllm-0-8001"]
    assert watch.found.unready == 1
    await server.put(PODS, pod("vllm-1", "10.0.0.2"))
    await when(watch, lambda: len(addresses(watch)) == 4)
    await server.delete(PODS, "vllm-0")
    await when(watch, lambda: addresses(watch) == ["10.0.0.2:8000", "10.0.0.2:8001"])
    await server.put(POOLS, pool("chat", 9000, app="web"))
    await when(watch, lambda: addresses(watch) == ["10.0.0.9:9000"])
    await server.delete(POOLS, "chat")
    await when(watch, lambda: addresses(watch) == [])
    assert watch.warnings() == ("InferencePool llm/chat: no endpoint: there is no such pool",)


async def test_what_was_missed_while_the_connection_was_lost_is_listed(
    followed: tuple[ApiServer, PoolWatch],
) -> None:
    server, watch = followed
    await server.put(POOLS, pool())
    for number in range(3):
        await server.put(PODS, pod(f"vllm-{number}", f"10.0.0.{number}"))
    await when(watch, lambda: len(addresses(watch)) == 3)

    await server.lose(PODS, "vllm-1")
    server.cut()

    await when(watch, lambda: addresses(watch) == ["10.0.0.0:8000", "10.0.0.2:8000"])
    assert watch.statistics().failures["pods", "failed"] >= 1


async def test_a_version_too_old_to_watch_from_is_listed_anew(
    followed: tuple[ApiServer, PoolWatch],
) -> None:
    server, watch = followed
    server.watch_s = 0.1
    server.bookmarks = False
    await server.put(POOLS, pool())
    await when(watch, lambda: "no pod" in watch.why_not())
    lists = server.asked(PODS, watch=False)

    server.kept = 0
    await server.put(NEW, objective("urgent", 5))
    await server.lose(NEW, "urgent")

    await when(watch, lambda: server.asked(PODS, watch=False) > lists)
    await server.put(PODS, pod("vllm-0", "10.0.0.1"))
    await when(watch, lambda: addresses(watch) == ["10.0.0.1:8000"])


async def test_bookmarks_spare_lists_while_other_objects_change(
    followed: tuple[ApiServer, PoolWatch],
) -> None:
    server, watch = followed
    server.watch_s = 0.1
    await server.put(POOLS, pool())
    await when(watch, lambda: "no pod" in watch.why_not())
    lists = server.asked(PODS, watch=False)

    server.kept = 3
    for number in range(5):
        # One change a watch: the next one begins at most so far behind, if it begins at a bookmark.
        watches = server.asked(PODS, watch=True)
        await server.put(NEW, objective(f"urgent-{number}", 5))
        await when(watch, lambda known=watches: server.asked(PODS, watch=True) > known)  # type: ignore[misc]

    assert server.asked(PODS, watch=False) == lists


async def test_a_server_that_ends_each_watch_at_once_is_not_asked_in_a_tight_loop(
    followed: tuple[ApiServer, PoolWatch],
) -> None:
    server, watch = followed
    server.watch_s = 0.0
    await server.put(POOLS, pool())
    await server.put(PODS, pod("vllm-0", "10.0.0.1"))

    await asyncio.wait_for(watch.synced.wait(), 10)
    began, asked = asyncio.get_running_loop().time(), len(server.log)
    await when(watch, lambda: addresses(watch) == ["10.0.0.1:8000"])
    await when(watch, lambda: server.asked(PODS, watch=True) >= 4)

    spent = asyncio.get_running_loop().time() - began
    assert len(server.log) - asked < 20 + spent * 4 * 2 / mirror.PAUSE_S


async def test_a_refusal_is_said_with_its_remedy_and_what_is_known_stays(
    followed: tuple[ApiServer, PoolWatch],
) -> None:
    server, watch = followed
    await server.put(POOLS, pool())
    await server.put(PODS, pod("vllm-0", "10.0.0.1"))
    await when(watch, lambda: len(addresses(watch)) == 1)
    said = 'pods is forbidden: User "system:serviceaccount:llm:picker" cannot list resource "pods"'

    server.refusals[PODS] = (403, said)
    server.cut()

    await when(watch, lambda: any(said in line for line in watch.warnings()))
    assert any("Role of deploy/k8s/overlays/gateway" in line for line in watch.warnings())
    assert addresses(watch) == ["10.0.0.1:8000"]
    del server.refusals[PODS]
    await when(watch, lambda: watch.warnings() == ())


async def test_a_token_that_rotates_is_read_anew(
    followed: tuple[ApiServer, PoolWatch], tmp_path: Path
) -> None:
    server, watch = followed
    await server.put(POOLS, pool())
    await when(watch, lambda: "no pod" in watch.why_not())

    server.token = "another"  # noqa: S105  a pretender's
    (tmp_path / "token").write_text("another\n")
    server.cut()
    await server.put(PODS, pod("vllm-0", "10.0.0.1"))

    await when(watch, lambda: addresses(watch) == ["10.0.0.1:8000"])


async def test_objectives_of_the_pool_have_priorities_by_either_kind(
    followed: tuple[ApiServer, PoolWatch],
) -> None:
    server, watch = followed
    await server.put(OLD, objective("batch", -1))
    await server.put(OLD, objective("chat", 1))
    await server.put(NEW, objective("chat", 7))
    await server.put(NEW, objective("unset", None))
    await server.put(NEW, objective("huge", 2**31 - 1))
    await server.put(NEW, objective("elsewhere", 3, of="code"))

    await when(watch, lambda: watch.priority_of("huge") is not None)
    await when(watch, lambda: watch.priority_of("batch") is not None)

    asked = ("batch", "chat", "unset", "huge", "elsewhere", "nobody's")
    assert [watch.priority_of(name) for name in asked] == [-1, 7, 0, 32768, None, None]
    await server.delete(NEW, "chat")
    await when(watch, lambda: watch.priority_of("chat") == 1)


async def test_a_cluster_without_objectives_lacks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with api_server.running(PODS, POOLS) as (server, port):
        monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig(tmp_path, port)))
        await server.put(POOLS, pool())
        await server.put(PODS, pod("vllm-0", "10.0.0.1"))
        watch = watch_pool(PoolSettings(inference_pool="llm/chat"))
        running = asyncio.ensure_future(watch.run())
        await when(watch, lambda: len(addresses(watch)) == 1 and watch.warnings() == ())
        await when(watch, lambda: server.asked(NEW, watch=False) == 1)
        running.cancel()
        await asyncio.wait([running])

    assert watch.warnings() == ()


async def test_a_cluster_without_the_extension_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with api_server.running(PODS) as (_, port):
        monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig(tmp_path, port)))
        watch = watch_pool(PoolSettings(inference_pool="llm/chat"))
        running = asyncio.ensure_future(watch.run())
        await when(watch, lambda: "404" in watch.why_not())
        running.cancel()
        await asyncio.wait([running])

    known = (
        "is the CustomResourceDefinition of inferencepools.inference.networking.k8s.io/v1 install"
    )
    assert known in watch.why_not()


LIES = {
    "no JSON": b"garbage\n",
    "no event": b'{"type": "RENAMED", "object": {}}\n',
    "no object": b'{"type": "ADDED", "object": 7}\n',
    "no name": b'{"type": "ADDED", "object": {"metadata": {"name": ""}}}\n',
    "a number without end": b'{"type": "MODIFIED", "object": ' + b"9" * 5000 + b"}\n",
    "an event without end": b"x" * (5 << 20),
    "another error": b'{"type": "ERROR", "object": {"code": 500, "message": "etcd is away"}}\n',
    "an error of another world": b'{"type": "ERROR", "object": {"code": "' + b"9" * 99 + b'"}}\n',
}


async def test_what_is_no_event_costs_a_list_and_nothing_else(
    followed: tuple[ApiServer, PoolWatch],
) -> None:
    server, watch = followed
    await server.put(POOLS, pool())
    await server.put(PODS, pod("vllm-0", "10.0.0.1"))
    await when(watch, lambda: len(addresses(watch)) == 1)

    for number, lie in enumerate(LIES.values(), 1):
        await server.reported(lie)
        await server.put(PODS, pod(f"vllm-{number}", f"10.0.1.{number}"))
        await when(watch, partial(has, watch, 1 + number))


WRONG_PODS: list[tuple[Any, str]] = [
    ({"status": {"podIP": "engines.example.org"}}, "no IP address"),
    ({"status": {"podIP": "fe80::1%eth0"}}, "zone"),
    ({"status": {"podIP": "10.0.0.1"}}, "is that of pod vllm-0, too"),
    ({"status": 7}, "Pod vllm-1"),
    ({"status": {"conditions": [{"type": "Ready"}]}}, "Pod vllm-1"),
]


async def test_a_pod_that_cannot_be_is_named_and_the_others_stay(
    followed: tuple[ApiServer, PoolWatch],
) -> None:
    server, watch = followed
    await server.put(POOLS, pool())
    await server.put(PODS, pod("vllm-0", "10.0.0.1"))
    liar = pod("vllm-1", "10.0.0.2")
    for wrong, said in WRONG_PODS:
        status = wrong["status"]
        whole = {**liar["status"], **status} if isinstance(status, dict) else status

        await server.put(PODS, {**liar, "status": whole})

        await when(watch, partial(is_warned, watch, said))
        await when(watch, lambda: addresses(watch) == ["10.0.0.1:8000"])
        await server.put(PODS, liar)
        await when(watch, lambda: len(addresses(watch)) == 2 and watch.warnings() == ())


def has(watch: PoolWatch, count: int) -> bool:
    return len(addresses(watch)) == count


def is_warned(watch: PoolWatch, words: str) -> bool:
    return any(words in line for line in watch.warnings())


WRONG_POOLS: list[dict[str, Any]] = [
    {"targetPorts": [{"number": 10**25}]},
    {"targetPorts": [{"number": 0}]},
    {"targetPorts": []},
    {"selector": {"matchLabels": {}}},
    {"selector": {"matchLabels": {"app": 7}}},
    {"selector": {"matchLabels": {"app": "vllm,tier!=free"}}},
    {"appProtocol": "gopher"},
]


async def test_a_pool_that_cannot_be_has_no_endpoints_and_says_why(
    followed: tuple[ApiServer, PoolWatch],
) -> None:
    server, watch = followed
    await server.put(PODS, pod("vllm-0", "10.0.0.1"))
    for spec in WRONG_POOLS:
        await server.put(POOLS, pool(**spec))

        await when(watch, lambda: "InferencePool chat: " in watch.why_not())
        assert watch.found.endpoints == ()
        await server.put(POOLS, pool())
        await when(watch, lambda: addresses(watch) == ["10.0.0.1:8000"])


async def test_lists_come_in_pages(followed: tuple[ApiServer, PoolWatch]) -> None:
    server, watch = followed
    server.page = 3
    for number in range(10):
        await server.put(PODS, pod(f"vllm-{number}", f"10.0.0.{number}"))

    await server.put(POOLS, pool())

    await when(watch, lambda: len(addresses(watch)) == 10)
    assert sum("continue" in query for at, query in server.log if at == PODS) == 3


async def test_a_server_that_hangs_or_is_away_is_said_and_found_again(
    api: tuple[ApiServer, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, port = api
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig(tmp_path, port)))
    monkeypatch.setattr(mirror, "PAUSE_S", 0.05)
    monkeypatch.setattr(mirror, "PAUSE_MAX_S", 0.2)
    monkeypatch.setattr("kvmesh.app.picker.kube_api.ANSWER_S", 0.2)
    await server.put(POOLS, pool())
    await server.put(PODS, pod("vllm-0", "10.0.0.1"))
    server.hangs = True
    watch = watch_pool(PoolSettings(inference_pool="llm/chat"))
    running = asyncio.ensure_future(watch.run())

    await when(watch, lambda: "in time" in watch.why_not())
    await server.stop()
    await when(watch, lambda: "in time" not in watch.why_not() and str(port) in watch.why_not())
    server.hangs = False
    await server.start(port)

    await when(watch, lambda: addresses(watch) == ["10.0.0.1:8000"])
    running.cancel()
    await asyncio.wait([running])


async def test_in_a_pod_its_service_account_logs_in_and_its_ca_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "PAUSE_S", 0.05)
    monkeypatch.setattr(mirror, "PAUSE_MAX_S", 0.2)
    server = ApiServer()
    server.have(PODS, POOLS, NEW, OLD)
    (tmp_path / "token").write_text(f"{api_server.TOKEN}\n")
    (tmp_path / "namespace").write_text("llm")
    port = await server.start(tls=certified(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
    watch = PoolWatch(PoolName("llm", "chat"), connect(account=str(tmp_path)), 600.0)
    running = asyncio.ensure_future(watch.run())
    await when(watch, lambda: "no such pool" in watch.why_not())

    await server.stop()
    await server.start(port, certified(tmp_path))
    await server.put(POOLS, pool())
    await server.put(PODS, pod("vllm-0", "10.0.0.1"))

    await when(watch, lambda: addresses(watch) == ["10.0.0.1:8000"])
    running.cancel()
    await asyncio.wait([running])
    await server.stop()


def certified(folder: Path) -> ssl.SSLContext:
    """Return the context of a server with a new certificate, which `ca.crt` then vouches for."""
    key, certificate = folder / "server.key", folder / "ca.crt"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "1", "-subj", "/CN=kube"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


@pytest.mark.parametrize("text", ["chat", "llm/", "/chat", "LLM/chat", "llm/a/b", "llm/../x"])
def test_a_pool_is_named_by_namespace_and_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--inference-pool .*write NAMESPACE/NAME"):
        watch_pool(PoolSettings(inference_pool=text))


@pytest.mark.parametrize(
    "config",
    [None, "{", "[]", json.dumps({"clusters": []}), json.dumps({"clusters": 7, "contexts": []})],
)
def test_without_an_api_server_it_is_said_where_one_is_looked_for(
    config: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kubeconfig"
    if config is not None:
        path.write_text(config)
    monkeypatch.setenv("KUBECONFIG", str(path))

    with pytest.raises(ConfigError, match=r"no API server is known.*KUBECONFIG"):
        watch_pool(PoolSettings(inference_pool="llm/chat"))


@pytest.mark.parametrize("seed", [1, 2])
async def test_after_a_storm_the_endpoints_are_those_of_the_cluster(
    followed: tuple[ApiServer, PoolWatch], seed: int
) -> None:
    server, watch = followed
    rng = random.Random(seed)
    for _ in range(80):
        name = f"vllm-{rng.randrange(6)}"
        match rng.randrange(8):
            case 0 | 1 | 2:
                ready, app = rng.random() < 0.8, rng.choice(("vllm", "web"))
                ip = f"10.0.0.{rng.randrange(8)}"
                await server.put(PODS, pod(name, ip, ready=ready, app=app))
            case 3 if name in server.objects[PODS]:
                await rng.choice((server.delete, server.lose))(PODS, name)
            case 4:
                ports = rng.sample((8000, 8001), rng.randrange(1, 3))
                await server.put(POOLS, pool("chat", *ports, app=rng.choice(("vllm", "web"))))
            case 5 if "chat" in server.objects[POOLS] and rng.random() < 0.3:
                await server.delete(POOLS, "chat")
            case 6:
                server.kept = rng.choice((0, 2, 1000))
                server.watch_s = rng.choice((0.0, 0.02, 60.0))
                server.page = rng.choice((0, 1, 2))
            case _:
                server.cut()
        await asyncio.sleep(rng.choice((0.0, 0.0, 0.005)))

    # What was lost without an event shows at the next list: have one. A mirror that pauses between
    # two watches has no connection to cut; that no past version is known makes it list.
    lists = server.asked(PODS, watch=False)
    server.kept, server.watch_s = 0, 60.0
    await server.put(POOLS, pool("chat", 8000, 8001))
    server.cut()
    await when(watch, lambda: server.asked(PODS, watch=False) > lists)
    server.kept = 1000

    await when(watch, lambda: addresses(watch) == expected(server))


def expected(server: ApiServer) -> list[str]:
    """Return the endpoints by what the server has, sorted as the pool's are."""
    found: dict[str, str] = {}
    for name in sorted(server.objects[PODS]):
        one = server.objects[PODS][name]
        conditions = {each["type"]: each["status"] for each in one["status"]["conditions"]}
        if one["metadata"]["labels"]["app"] == "vllm" and conditions["Ready"] == "True":
            for port in (8000, 8001):
                found.setdefault(f"{one['status']['podIP']}:{port}", f"{name}-{port}")
    return [address for _, address in sorted((name, address) for address, name in found.items())]


def test_without_the_extra_it_is_said_what_to_install() -> None:
    script = """
import sys
sys.modules["httpx2"] = None
from kvmesh.app.router.mesh_choice import find_pool
from kvmesh.settings.features import PoolSettings
from kvmesh.settings.roles import RouterSettings
find_pool(RouterSettings(pool=PoolSettings(inference_pool="llm/chat")))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)

    said = "--inference-pool needs httpx2: pip install 'kvmesh[kubernetes]'"
    assert said in ended.stderr.decode()
