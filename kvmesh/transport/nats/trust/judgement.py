"""Why a signed message is refused, if it is: the rules, without clock, file or log."""

from typing import Final, Literal, get_args

import msgspec

from kvmesh.errors import CodecError
from kvmesh.transport.nats.trust.anchors import Anchors
from kvmesh.transport.nats.trust.claim import Claim
from kvmesh.transport.nats.trust.freshness import Freshness
from kvmesh.transport.nats.trust.seal import STALE_MS, Seal, is_genuine, parse_seal

Reason = Literal["unsigned", "foreign", "stale", "forged"]
REASONS: Final[tuple[Reason, ...]] = get_args(Reason)


class Message(msgspec.Struct, frozen=True):
    """What came: `seal` is the signature header's value, "" for none."""

    claim: Claim
    subject: str
    seal: str
    payload: bytes


class Refusal(msgspec.Struct, frozen=True):
    """`text` says why, and what to do. `skew_ms`: what the signer's clock is ahead by, if that is
    why.
    """

    reason: Reason
    text: str
    key: str = ""
    skew_ms: int = 0


def judge(
    message: Message,
    anchors: Anchors,
    now_ms: int,
    taken: Freshness | None = None,
    since_ms: int = 0,
) -> Refusal | None:
    """Return why the message is refused: by its seal, key and age; None for a good one.

    `now_ms` is when it came, of a stored value when it was stored. With `taken` it is refused if
    it was taken before, else remembered there. A command that was signed before `since_ms`, when
    this process began to listen, cannot have been sent to it. The signature is checked last: it
    costs ten times as much as all the rest.
    """
    if not message.seal:
        text = "it has no signature: give its sender --nats-creds, or update it"
        return Refusal("unsigned", text)
    try:
        seal = parse_seal(message.seal)
    except CodecError as error:
        return Refusal("forged", str(error))
    public = anchors.find_signer(seal.key, message.claim)
    if public is None:
        whose = anchors.describe(seal.key) or "nobody's"
        text = f"that key ({whose}) may not say it: is trust.json older than the key?"
        return Refusal("foreign", text, seal.key)
    if taken is not None and not taken.is_new(seal, message.subject):
        return Refusal("stale", "it was received before: a recording is replayed", seal.key)
    if not is_genuine(seal, public, message.subject, message.payload):
        return Refusal("forged", "the signature is not of that key and message", seal.key)
    late = _find_late(seal, message.claim, anchors, now_ms, since_ms)
    if late is None and taken is not None:
        taken.take(seal, message.subject, now_ms)
    return late


def _find_late(
    seal: Seal, claim: Claim, anchors: Anchors, now_ms: int, since_ms: int
) -> Refusal | None:
    """Return why a genuine seal is out of time, if it is."""
    skew_ms = seal.time_ms - now_ms
    if abs(skew_ms) > STALE_MS:
        whose = f"{claim.bucket}/{claim.member}" if claim.member else anchors.describe(seal.key)
        if claim.kind in ("lease", "manifest"):
            whose += " or of the NATS server"
        text = (
            f"the clock of {whose} is {abs(skew_ms) / 1000:.0f} s "
            f"{'ahead' if skew_ms > 0 else 'behind'}: set it (NTP), or it is a recording"
        )
        return Refusal("stale", text, seal.key, skew_ms)
    if claim.kind == "command" and seal.time_ms < since_ms:
        text = "it was signed before this process began to listen: a recording, or a clock behind"
        return Refusal("stale", text, seal.key)
    return None
