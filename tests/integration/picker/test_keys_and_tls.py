"""Who may ask a picker, and for whom."""

from pathlib import Path

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from kvmesh.app.front.api_key import ApiKeyOptions, add_key
from kvmesh.settings.http import HttpSettings, UpstreamSettings
from kvmesh.settings.picker import GrpcSettings
from tests.integration.picker.asking import Gateway, RefusedError, chat, serve
from tests.integration.picker.live_picker import engines, picker
from tests.integration.support.live_router import free_port

pytestmark = pytest.mark.integration

TLS = Path(__file__).parents[2] / "fixtures/tls"


async def test_a_key_is_asked_for_turned_into_its_tenant_and_taken_off(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    key = add_key(ApiKeyOptions("alice", file=file, tenant="blue"))
    bearer = {"authorization": f"Bearer {key}"}
    http = HttpSettings(http_port=free_port(), api_keys=file)
    async with engines(1) as urls, picker(urls, http=http, path="/ready") as live:
        with pytest.raises(RefusedError) as refused:
            await serve(live.gateway, live.client, chat("hi"), {})
        async with live.gateway.ask(chat("hi"), {**bearer, "x-kvmesh-tenant": "red"}) as asked:
            removed, reported = asked.removed, asked.headers
        answer, _ = await serve(live.gateway, live.client, chat("hi"), bearer)

    assert refused.value.status == 401
    assert b'"error"' in refused.value.body
    assert refused.value.headers["www-authenticate"].startswith("Bearer")
    assert "authorization" in removed
    assert reported.get("x-kvmesh-tenant", "blue") == "blue"
    assert ("x-kvmesh-tenant" in removed) != ("x-kvmesh-tenant" in reported)
    assert b"[DONE]" in answer


async def test_gateways_ask_by_tls_with_a_certificate_of_theirs() -> None:
    port = free_port()
    tls = GrpcSettings(
        grpc_port=port,
        notice_s=0.0,
        grpc_tls_cert=TLS / "cert.pem",
        grpc_tls_key=TLS / "key.pem",
        grpc_tls_client_ca=TLS / "cert.pem",
    )
    root = (TLS / "cert.pem").read_bytes()
    shown = (TLS / "key.pem").read_bytes(), (TLS / "cert.pem").read_bytes()
    async with engines(1) as urls, picker(urls, grpc=tls) as live:
        known = grpc.ssl_channel_credentials(root, *shown)
        stranger = grpc.ssl_channel_credentials(root)
        gateways = [Gateway(f"localhost:{port}", one) for one in (known, stranger)]
        serves = [await one.is_serving() for one in (*gateways, live.gateway)]
        answer, _ = await serve(gateways[0], live.client, chat("hi"), {})
        for one in gateways:
            await one.close()

    assert serves == [True, False, False]
    assert b"[DONE]" in answer


@pytest.mark.parametrize("guarded", [False, True])
async def test_who_is_told_the_engines_key_is_said_at_the_start(
    guarded: bool, tmp_path: Path
) -> None:
    key = tmp_path / "engines.key"
    key.write_text("sk-engines")
    key.chmod(0o600)
    port, files = free_port(), TLS / "cert.pem"
    tls = GrpcSettings(
        grpc_port=port,
        notice_s=0.0,
        grpc_tls_cert=files if guarded else None,
        grpc_tls_key=TLS / "key.pem" if guarded else None,
        grpc_tls_client_ca=files if guarded else None,
    )
    upstream = UpstreamSettings(upstream_key_file=key)
    with capture_logs() as lines:
        async with engines(1) as urls, picker(urls, grpc=tls, upstream=upstream) as live:
            reported = None if guarded else await routing_headers(live.gateway)

    warned = [one for one in lines if "the engines' key" in one["event"]]
    assert len(warned) == (not guarded)
    assert reported is None or reported["authorization"] == "Bearer sk-engines"


async def routing_headers(gateway: Gateway) -> dict[str, str]:
    async with gateway.ask(chat("hi"), {}) as asked:
        return asked.headers
