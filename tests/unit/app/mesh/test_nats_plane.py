from pathlib import Path

import pytest

from kvmesh.app.mesh.nats_plane import connection_options, nats_plane
from kvmesh.app.mesh.plane import event_plane
from kvmesh.errors import ConfigError
from kvmesh.settings.roles import NatsSettings


@pytest.mark.parametrize(
    ("who", "name", "inbox"),
    [
        (("router", "code", "r1"), "router r1", "_INBOX.router.code.r1"),
        (("follower", "code", "mine"), "follower mine", "_INBOX.router.code.mine"),
        (("picker", "code", "p1"), "picker p1", "_INBOX.router.code.p1"),
        (("worker", "code", "w7"), "worker w7", "_INBOX.worker.code.w7"),
        (("meta-router",), "meta-router", "_INBOX.meta-router"),
        (("admin",), "admin", "_INBOX.admin"),
        (("snapshot tool",), "snapshot tool", "_INBOX"),
    ],
)
def test_each_process_hears_answers_where_its_account_may(
    who: tuple[str, ...], name: str, inbox: str
) -> None:
    options = connection_options(NatsSettings(), *who)

    assert (options.name, options.inbox_prefix) == (name, inbox)
    assert options.url == "nats://127.0.0.1:4222"
    assert options.adapts_streams == (who[0] != "follower")


def test_how_a_process_logs_in_is_passed_on() -> None:
    settings = NatsSettings(nats_url="tls://n:1", nats_creds=Path("c"), nats_tls_ca=Path("ca"))

    options = connection_options(settings, "router", "code", "r1")

    assert (options.url, options.creds, options.tls_ca) == ("tls://n:1", Path("c"), Path("ca"))


async def test_a_plane_that_is_not_connected_waits_for_nothing_yet() -> None:
    plane = event_plane(NatsSettings(nats_url="nats://127.0.0.1:1"), "worker", "code", "w7")

    assert not plane.connected
    assert plane.waiting() == ""
    assert plane.warnings() == ()


def test_a_namespace_that_no_subject_may_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="--namespace"):
        nats_plane(NatsSettings(namespace="a.b"), "admin")
