import msgspec
import pytest
from lightkube.config.kubeconfig import KubeConfig

from kvmesh.actors.messages import WorkerSeen
from kvmesh.actors.router import Router
from kvmesh.app.picker.kube_api import KubeApi
from kvmesh.app.picker.pool import PoolWatch
from kvmesh.app.picker.pool_endpoints import Endpoint, PoolEndpoints
from kvmesh.app.picker.pool_members import PoolMembers, address_in
from kvmesh.app.picker.pool_view import PoolName
from kvmesh.core.blocks.events import WorkerId
from tests.unit.actors.test_router import BEAT, make_router


def make_watch() -> PoolWatch:
    config = KubeConfig.from_server("http://127.0.0.1:1").get()
    assert config is not None
    return PoolWatch(PoolName("llm", "chat"), KubeApi(config), 300.0)


def turn(watch: PoolWatch, *addresses: str) -> None:
    """Have the pool be those addresses from now on, a pod each."""
    endpoints = tuple(Endpoint(f"w-{one}", one, f"pod-{one}") for one in addresses)
    watch.found = PoolEndpoints(endpoints, frozenset(addresses))
    for on_crash in watch.listeners:
        on_crash()


def seen(router: Router, name: str, url: str) -> None:
    """Have a worker join as the registry has it join: a member first, then known with its URL."""
    router.scheduler.workers.membership.observe(name, 1, 0.0)
    router.scheduler.workers.everyone(0.0)
    beat = msgspec.structs.replace(BEAT, worker=WorkerId(name), url=url)
    router.receive(WorkerSeen(beat), 0.0)


def test_only_workers_at_the_pool_s_endpoints_may_be_given_work() -> None:
    router, watch = make_router(), make_watch()
    members = PoolMembers(watch, router)
    workers = router.scheduler.workers
    seen(router, "a", "http://10.0.0.1:8000")
    seen(router, "b", "http://10.0.0.2:8000")

    assert workers.everyone(0.0) == ()
    assert workers.membership.last_resort(0.0) == ()
    why = "its URL is no endpoint of InferencePool llm/chat"
    assert workers.membership.why_not("a", 0.0) == why
    turn(watch, "10.0.0.1:8000", "10.0.0.3:8000")

    assert workers.everyone(0.0) == ("a",)
    assert members.unserved() == ("pod-10.0.0.3:8000",)
    assert any("pod-10.0.0.3:8000" in line for line in watch.warnings())
    seen(router, "c", "http://10.0.0.3:8000")
    assert workers.everyone(0.0) == ("a", "c")
    assert members.unserved() == ()
    seen(router, "a", "http://10.0.0.9:8000")
    assert workers.everyone(0.0) == ("c",)
    turn(watch)
    assert workers.everyone(0.0) == ()


def test_a_member_that_was_not_heard_yet_gets_nothing() -> None:
    router, watch = make_router(), make_watch()
    PoolMembers(watch, router)
    turn(watch, "10.0.0.1:8000")

    router.scheduler.workers.membership.observe("a", 1, 0.0)

    assert router.scheduler.workers.everyone(0.0) == ()
    assert router.scheduler.workers.membership.why_not("a", 0.0) == "it just joined"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1:8000"),
        ("http://10.0.0.1", "10.0.0.1:80"),
        ("https://10.0.0.1/", "10.0.0.1:443"),
        ("http://[FD00:0::1]:8000", "[fd00::1]:8000"),
        ("http://engine.example.org:1", "engine.example.org:1"),
        ("http://10.0.0.1:99999999999999999999", ""),
        ("http://[", ""),
    ],
)
def test_the_address_of_a_url_is_that_of_an_endpoint(url: str, address: str) -> None:
    assert address_in(url) == address
