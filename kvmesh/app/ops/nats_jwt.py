"""JSON web tokens of NATS, version 2: who an operator vouches for, signed by nkeys.

The one package for it on PyPI, nats-jwt 0.2.2, calls itself not well tested and pins pytz of 2024;
what is needed of the format is below. Source: github.com/nats-io/jwt/v2.
"""

import base64
import hashlib
from typing import Any, Final

import msgspec

from kvmesh.app.ops.nats_isolation import Account
from kvmesh.app.ops.nats_rights import ANSWER_S, Rights
from kvmesh.transport.nats.trust.nkey import KeyPair

HEADER: Final = b'{"typ":"JWT","alg":"ed25519-nkey"}'
NANOSECONDS: Final = 1_000_000_000
UNLIMITED: Final = -1
VERSION: Final = 2


def sign_claims(
    signer: KeyPair, name: str, subject: str, issued_s: int, body: dict[str, Any]
) -> str:
    """Return the token in which `signer` says `body` of the public key `subject`."""
    claims = {
        "iat": issued_s,
        "iss": signer.public_key,
        "name": name,
        "sub": subject,
        "nats": body | {"version": VERSION},
    }
    digest = hashlib.sha256(msgspec.json.encode(claims)).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    text = f"{_base64(HEADER)}.{_base64(msgspec.json.encode(claims))}"
    return f"{text}.{_base64(signer.sign(text.encode()))}"


def operator_body(system_account: str) -> dict[str, Any]:
    """Return what an operator says of itself; `system_account` is a public key."""
    return {"type": "operator", "system_account": system_account}


def user_body(rights: Rights) -> dict[str, Any]:
    """Return what an account says of one who logs in: the same rights as in accounts.conf."""
    pub = {"allow": list(rights.publish)} if rights.publish else {"deny": [">"]}
    body: dict[str, Any] = {
        "type": "user",
        "pub": pub,
        "sub": {"allow": list(rights.subscribe)},
        "subs": UNLIMITED,
        "data": UNLIMITED,
        "payload": UNLIMITED,
    }
    if rights.answers:
        body["resp"] = {"max": 1, "ttl": ANSWER_S * NANOSECONDS}
    return body


def activation_body(subject: str, kind: str) -> dict[str, Any]:
    """Return what an exporting account says of one that may import `subject`."""
    return {"type": "activation", "subject": subject, "kind": kind}


def account_body(
    account: Account, imports: list[dict[str, Any]], disk: int, memory: int, revoked: dict[str, int]
) -> dict[str, Any]:
    """Return what the operator says of an account.

    `disk` and `memory` in bytes are for those with JetStream. Tokens of the user keys `revoked`
    that were issued in that second or before are worth nothing.
    """
    exports = [
        {"name": one.subject, "subject": one.subject, "type": one.kind, "token_req": True}
        | (
            {"response_type": "Singleton", "response_threshold": one.answer_s * NANOSECONDS}
            if one.answer_s
            else {}
        )
        for one in account.exports
    ]
    limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn"), UNLIMITED)
    limits |= {"wildcards": True, "leaf": UNLIMITED if account.leafs else 0}
    stores = {"mem_storage": memory, "disk_storage": disk, "streams": -1, "consumer": -1}
    return {
        "type": "account",
        "exports": exports,
        "imports": imports,
        "limits": limits | (stores if account.jetstream else {}),
        "revocations": revoked,
    }


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
