"""Members with keys, for tests."""

from nacl.signing import SigningKey

from kvmesh.transport.nats.trust.anchors import Anchor, Anchors
from kvmesh.transport.nats.trust.nkey import user_key

SECRETS = {
    name: SigningKey(bytes([number]) * 32)
    for number, name in enumerate(("w0", "w1", "any", "many", "r0", "r-other", "meta", "stranger"))
}
KEYS = {name: user_key(bytes(one.verify_key)) for name, one in SECRETS.items()}
MEMBERS = (
    Anchor("worker", KEYS["w0"], "chat", "w0"),
    Anchor("worker", KEYS["w1"], "chat", "w1"),
    Anchor("worker", KEYS["any"], "code", "*"),
    Anchor("worker", KEYS["many"], "chat", "many", 3),
    Anchor("router", KEYS["r0"], "chat", "r0"),
    Anchor("router", KEYS["r-other"], "code", "r0"),
    Anchor("meta-router", KEYS["meta"]),
)
ANCHORS = Anchors(MEMBERS)
