import base64
import json
import os
from typing import Any

from nacl.signing import SigningKey

from kvmesh.app.ops.nats_isolation import Account, Export
from kvmesh.app.ops.nats_jwt import account_body, operator_body, sign_claims, user_body
from kvmesh.app.ops.nats_rights import Rights
from kvmesh.transport.nats.trust.nkey import OPERATOR, KeyPair, encode_seed


def decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def test_a_token_is_signed_by_its_issuer_and_the_same_each_time() -> None:
    raw = os.urandom(32)
    operator = KeyPair(encode_seed(OPERATOR, raw))

    token = sign_claims(operator, "kvmesh", "A1", 17, operator_body("A1"))

    header, claims, signature = token.split(".")
    assert SigningKey(raw).verify_key.verify(f"{header}.{claims}".encode(), decoded(signature))
    found: dict[str, Any] = json.loads(decoded(claims))
    assert found["iss"] == operator.public_key
    assert (found["sub"], found["iat"], found["name"]) == ("A1", 17, "kvmesh")
    assert found["nats"] == {"type": "operator", "system_account": "A1", "version": 2}
    assert sign_claims(operator, "kvmesh", "A1", 17, operator_body("A1")) == token


def test_a_user_has_the_rights_of_the_configuration_file() -> None:
    body = user_body(Rights(("a",), ("b",), answers=True))
    silent = user_body(Rights((), ("b",)))

    assert (body["pub"], body["sub"]) == ({"allow": ["a"]}, {"allow": ["b"]})
    assert body["resp"] == {"max": 1, "ttl": 5_000_000_000}
    assert silent["pub"] == {"deny": [">"]}
    assert "resp" not in silent


def test_an_account_exports_to_holders_of_a_token_only_and_has_no_leaf_nodes() -> None:
    account = Account("bucket.chat", exports=(Export("ev.*", "service", ("w",), 10),))
    store = Account("meta", exports=(Export("rt.*", "stream", ("m",)),), jetstream=True)

    without = account_body(account, [], 1000, 10, {"U1": 5})
    with_streams = account_body(store, [], 1000, 10, {})

    assert without["exports"][0]["token_req"]
    assert without["exports"][0]["response_threshold"] == 10_000_000_000
    assert "disk_storage" not in without["limits"]
    assert without["limits"]["leaf"] == 0
    assert without["revocations"] == {"U1": 5}
    assert with_streams["limits"]["disk_storage"] == 1000
    assert "response_type" not in with_streams["exports"][0]
