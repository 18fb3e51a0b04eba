import pytest

from kvmesh.actors.snapshotter import lease_key, manifest_key
from kvmesh.actors.wire import Subjects
from kvmesh.transport.nats.layout import meta_bucket
from kvmesh.transport.nats.trust.claim import Claim, Claims

CHAT = Subjects("mesh", "chat")
META = f"$KV.{meta_bucket('mesh')}"
SIGNED = {
    CHAT.heartbeats("w0"): Claim("worker heartbeat", "chat", "w0"),
    CHAT.routers("r0"): Claim("router heartbeat", "chat", "r0"),
    CHAT.control("w0"): Claim("command", "chat"),
    CHAT.router_control("r0"): Claim("command", "chat"),
    f"{META}.{lease_key('chat')}": Claim("lease", "chat"),
    f"{META}.{manifest_key('chat')}": Claim("manifest", "chat"),
}


@pytest.mark.parametrize("subject", SIGNED)
def test_a_subject_says_what_its_message_claims(subject: str) -> None:
    assert Claims("mesh").read(subject) == SIGNED[subject]


@pytest.mark.parametrize(
    "subject",
    [
        CHAT.events("w0"),
        CHAT.bookings("r0"),
        "other.hb.chat.w0",
        "mesh.hb.chat",
        "mesh.hb.chat.w0.more",
        f"{META}.other",
        "$KV.mesh_sessions_chat.x",
        "_INBOX.worker.chat.w0.x",
        "$JS.API.INFO",
    ],
)
def test_what_is_not_signed_claims_nothing(subject: str) -> None:
    assert Claims("mesh").read(subject) is None


def test_the_quick_look_at_bytes_misses_no_signed_message_of_the_bus() -> None:
    quick = Claims("mesh").raw_prefixes

    assert all(one.encode().startswith(quick) for one in SIGNED if not one.startswith("$KV."))
