from kvmesh.actors.wire import Subjects
from kvmesh.app.ops.nats_rights import (
    Rights,
    biller_rights,
    meta_router_rights,
    router_rights,
    site_rights,
    worker_rights,
)

CODE = Subjects("kvmesh", "code")


def test_a_worker_may_write_its_own_two_subjects_and_nothing_else() -> None:
    rights = worker_rights(CODE, "w7")

    assert rights.publish == ("kvmesh.ev.code.w7", "kvmesh.hb.code.w7")
    assert rights.subscribe == ("_INBOX.worker.code.w7.>", "kvmesh.ctl.code.w7")
    assert rights.to_config()["allow_responses"] == {"max": 1, "expires": "5s"}


def test_a_worker_with_ranks_speaks_for_each_of_them() -> None:
    rights = worker_rights(CODE, "w7", ranks=2)

    assert rights.publish == tuple(
        f"kvmesh.{kind}.code.w7-dp{rank}" for kind in ("ev", "hb") for rank in (0, 1)
    )
    assert "kvmesh.ctl.code.w7-dp1" in rights.subscribe


def test_a_router_may_neither_make_nor_delete_streams_nor_write_events() -> None:
    rights = router_rights(CODE, "r1")

    assert not [each for each in rights.publish if ".ev." in each or ".hb." in each]
    for verb in ("CREATE", "UPDATE", "DELETE"):
        assert not [each for each in rights.publish if f"STREAM.{verb}" in each]
    assert "$JS.API.STREAM.PURGE.KVMESH_EVENTS_code" in rights.publish
    assert "kvmesh.seq.code.r1" in rights.publish
    assert "kvmesh.rctl.code.r1" in rights.subscribe


def test_a_router_writes_and_follows_the_tables_of_its_own_bucket() -> None:
    rights = router_rights(CODE, "r1")

    written = {each for each in rights.publish if each.startswith("$KV.")}
    assert written == {
        "$KV.kvmesh_meta.>",
        "$KV.kvmesh_sessions_code.>",
        "$KV.kvmesh_programs_code.>",
        "$KV.kvmesh_ids_code.>",
    }
    assert "$JS.API.CONSUMER.CREATE.KV_kvmesh_programs_code.>" in rights.publish


def test_a_meta_router_listens_and_writes_the_homes_of_conversations_alone() -> None:
    config = meta_router_rights("kvmesh").to_config()

    written = [one for one in config["publish"]["allow"] if not one.startswith("$JS.")]
    asked = [one for one in config["publish"]["allow"] if one.startswith("$JS.API.")]
    assert written == ["$KV.kvmesh_homes.>"]
    assert asked
    assert all("KV_kvmesh_homes" in one for one in asked)
    for verb in ("CREATE", "UPDATE", "DELETE", "PURGE"):
        assert not [each for each in asked if f"STREAM.{verb}" in each]
    assert "allow_responses" not in config


def test_a_router_appends_usage_as_itself_and_follows_that_of_its_bucket() -> None:
    rights = router_rights(CODE, "r1")

    assert "kvmesh.use.code.r1" in rights.publish
    assert "$JS.API.CONSUMER.CREATE.kvmesh_usage_code.>" in rights.publish
    assert not [one for one in rights.publish if "STREAM.PURGE.kvmesh_usage" in one]


def test_a_biller_reads_the_record_of_its_bucket_by_its_own_consumer_and_nothing_else() -> None:
    rights = biller_rights(CODE, "b")

    assert rights.publish == (
        "$JS.API.STREAM.INFO.kvmesh_usage_code",
        "$JS.API.CONSUMER.CREATE.kvmesh_usage_code.b.>",
        "$JS.API.CONSUMER.CREATE.kvmesh_usage_code.b",
        "$JS.API.CONSUMER.DURABLE.CREATE.kvmesh_usage_code.b",
        "$JS.API.CONSUMER.INFO.kvmesh_usage_code.b",
        "$JS.API.CONSUMER.MSG.NEXT.kvmesh_usage_code.b",
        "$JS.ACK.kvmesh_usage_code.b.>",
    )
    assert rights.subscribe == ("_INBOX.biller.code.b.>",)


def test_a_meta_router_tells_of_its_own_site_and_the_key_of_another_of_that_one() -> None:
    meta, alone, us = (
        meta_router_rights("eu", "eu"),
        meta_router_rights("eu"),
        site_rights("eu", "us"),
    )

    assert set(meta.publish) - set(alone.publish) == {"kvmesh_sites.eu.*"}
    assert set(meta.subscribe) - set(alone.subscribe) == {"kvmesh_sites.*.*"}
    assert us == Rights(("kvmesh_sites.us.*",), ("kvmesh_sites.eu.*",))
