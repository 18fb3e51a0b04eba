import json
from typing import Any

from kvmesh.app.meta.bucket_reader import BucketReader
from kvmesh.app.meta.session_names import SessionNames
from kvmesh.app.prompts.isolation import Isolation
from kvmesh.core.admission.tenant_salt import TenantSalts
from kvmesh.core.buckets.buckets import BucketTable
from kvmesh.core.buckets.rules import BucketRequest
from kvmesh.core.members.membership import Membership
from kvmesh.transport.http.openai import ENDPOINTS, read_request
from kvmesh.transport.http.server.request import Request

CHAT = ENDPOINTS["/v1/chat/completions"]
SESSION = (b"x-kvmesh-session", b"lunch")


def read(tenant: str, *, apart: bool, **more: Any) -> BucketRequest:
    isolation = Isolation(TenantSalts(b"0123456789abcdef"), "x-kvmesh-tenant") if apart else None
    sessions = SessionNames("x-kvmesh-tenant")
    reader = BucketReader(BucketTable(Membership()), sessions, rules=False, isolation=isolation)
    body = json.dumps({"messages": [{"role": "user", "content": "secret " * 100}], **more}).encode()
    headers = [(b"x-kvmesh-tenant", tenant.encode()), SESSION]
    request = Request("POST", b"/v1/chat/completions", headers, body)
    wanted = reader.read(request, CHAT, read_request(request, CHAT), check=True)
    assert request.body == body
    return wanted


def test_a_conversation_draws_no_other_tenants_to_its_bucket() -> None:
    ann, again, ben = (read(tenant, apart=True) for tenant in ("ann", "ann", "ben"))

    assert ann.keys == again.keys
    assert not set(keys(ann)) & set(keys(ben))
    assert not set(keys(ann)) & set(keys(read("ann", apart=True, cache_salt="own")))
    assert not set(ann.sessions) & set(ben.sessions)


def test_without_isolation_beginnings_are_shared_and_sessions_are_not() -> None:
    ann, ben = (read(tenant, apart=False) for tenant in ("ann", "ben"))

    assert ann.keys == ben.keys
    assert not set(ann.sessions) & set(ben.sessions)


def keys(request: BucketRequest) -> list[int]:
    """Return every key of a prompt but those that stand for nothing."""
    found: list[int] = []
    for value in (getattr(request.keys, name) for name in request.keys.__struct_fields__):
        found += value if isinstance(value, tuple | list) else [value]
    found = [one for one in found if one]
    assert found
    return found
