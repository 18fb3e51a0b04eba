from pathlib import Path

import pytest

from kvmesh.app.up import plan_mesh
from kvmesh.errors import ConfigError
from kvmesh.settings import UpSettings


def test_engines_are_dealt_to_buckets_and_each_bucket_gets_its_replicas() -> None:
    plan = plan_mesh(UpSettings(engines=4, buckets="chat,code", replicas=2), "nats://n:1")

    assert [spec.name for spec in plan.routers] == [
        "router-chat-0",
        "router-chat-1",
        "router-code-0",
        "router-code-1",
    ]
    buckets = [spec.args[spec.args.index("--bucket") + 1] for spec in plan.sidecars]
    assert buckets == ["chat", "code", "chat", "code"]
    ports = [spec.ready_url for spec in plan.all() if spec.ready_url]
    assert len(set(ports)) == len(ports)


@pytest.mark.parametrize(("buckets", "engines"), [("", 4), ("chat,chat", 4), ("a,b,c", 2)])
def test_a_plan_that_cannot_work_is_refused(buckets: str, engines: int) -> None:
    with pytest.raises(ConfigError, match="--"):
        plan_mesh(UpSettings(engines=engines, buckets=buckets), "nats://n:1")


def test_the_secret_of_hashes_goes_to_routers_and_sidecars_and_nobody_else() -> None:
    plan = plan_mesh(UpSettings(hash_secret_file=Path("secret")), "nats://n:1")

    given = [spec.name for spec in plan.all() if "--hash-secret-file" in spec.args]

    assert given == [spec.name for spec in (*plan.sidecars, *plan.routers)]
