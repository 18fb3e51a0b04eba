"""Who may log in, and what a client with least rights may do."""

import contextlib
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from kvmesh.errors import ConfigError, TransportError
from kvmesh.transport.nats.jetstream.api import JetStream
from kvmesh.transport.nats.jetstream.journal import JournalOptions, NatsJournal
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions
from tests.integration.nats.clients import connect, start_server

pytestmark = pytest.mark.integration

USERS = """
authorization {
  users = [
    { user: admin, password: secret }
    { user: w7, password: secret, permissions: {
        publish: ["kvmesh.ev.code.w7", "kvmesh.hb.code.w7"],
        subscribe: ["_INBOX_w7.>", "kvmesh.ctl.code.w7"] } }
    { user: r1, password: secret, permissions: {
        publish: ["$JS.API.STREAM.INFO.*"], subscribe: ["_INBOX_r1.>"] } }
  ]
}
"""


def with_user(url: str, user: str, password: str = "secret") -> str:  # noqa: S107  a test server's
    return url.replace("nats://", f"nats://{user}:{password}@")


async def test_a_wrong_password_is_told_at_once(
    stack: contextlib.AsyncExitStack, tmp_path: Path
) -> None:
    server = await start_server(stack, tmp_path, config=USERS)
    connection = NatsConnection(
        NatsOptions(url=with_user(server.url, "admin", "wrong"), first_connect_s=120)
    )

    started = time.monotonic()
    with pytest.raises(TransportError, match=r"(?i)authorization") as caught:
        await connection.connect()

    assert time.monotonic() - started < 60
    assert "wrong" not in str(caught.value)


async def test_a_missing_key_file_is_a_configuration_error(tmp_path: Path) -> None:
    for option in ("creds", "tls_ca"):
        options: dict[str, Any] = {option: tmp_path / "absent"}
        with pytest.raises(ConfigError, match="absent"):
            await NatsConnection(NatsOptions(**options)).connect()


async def test_a_broken_ca_file_is_a_configuration_error(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("not a certificate")

    with pytest.raises(ConfigError):
        await NatsConnection(NatsOptions(tls_ca=path)).connect()


async def test_a_worker_with_least_rights_may_append_and_nothing_else(
    stack: contextlib.AsyncExitStack, tmp_path: Path, eventually: Any
) -> None:
    server = await start_server(stack, tmp_path, config=USERS)
    options = JournalOptions(
        stream="EVENTS", subjects=("kvmesh.ev.code.*",), max_bytes=16 * 1024**2
    )
    admin = NatsJournal(await connect(stack, url=with_user(server.url, "admin")), options)
    await admin.open()
    worker = await connect(stack, url=with_user(server.url, "w7"), inbox_prefix="_INBOX_w7")
    journal = NatsJournal(worker, options)
    await journal.open(ensure=False)
    acks: list[int] = []

    journal.append("kvmesh.ev.code.w7", b"mine", acks.append)
    await eventually(lambda: acks == [1])
    journal.append("kvmesh.ev.code.w8", b"not mine", acks.append)
    await eventually(lambda: worker.statistics().errors)
    journal.append("kvmesh.ev.code.w7", b"mine again", acks.append)
    await eventually(lambda: acks == [1, 2])

    assert (await admin.state()).messages == 2
    assert worker.connected


async def test_a_stream_that_a_user_may_not_make_is_told_and_not_waited_for(
    stack: contextlib.AsyncExitStack, tmp_path: Path
) -> None:
    server = await start_server(stack, tmp_path, config=USERS)
    options = NatsOptions(url=with_user(server.url, "r1"), inbox_prefix="_INBOX_r1")
    connection = NatsConnection(options)
    await connection.connect_patiently()
    stack.push_async_callback(connection.close)

    with pytest.raises(TransportError, match=r"STREAM\.CREATE\.EVENTS.*does not permit"):
        await NatsJournal(connection, JournalOptions(stream="EVENTS", subjects=("ev.*",))).open()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl binary to make a certificate with")
    folder.mkdir(parents=True, exist_ok=True)
    key, certificate = folder / "key.pem", folder / "cert.pem"
    argv = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    argv += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    argv += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(argv, check=True, capture_output=True)
    return key, certificate


async def test_tls_with_the_right_authority_works_and_reconnects(
    stack: contextlib.AsyncExitStack, tmp_path: Path, eventually: Any
) -> None:
    key, certificate = make_certificate(tmp_path / "tls")
    config = f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}\n'
    server = await start_server(stack, tmp_path, config=config)
    connection = await connect(stack, url=server.url, tls_ca=certificate)

    server.kill()
    await eventually(lambda: not connection.connected)
    await server.start()
    await eventually(lambda: connection.connected)

    assert "memory" in await JetStream(connection).call("INFO", None, dict[str, Any])


async def test_tls_with_a_strange_authority_is_told_at_once(
    stack: contextlib.AsyncExitStack, tmp_path: Path
) -> None:
    key, certificate = make_certificate(tmp_path / "tls")
    _, strange = make_certificate(tmp_path / "strange")
    config = f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}\n'
    server = await start_server(stack, tmp_path, config=config)
    connection = NatsConnection(NatsOptions(url=server.url, tls_ca=strange, first_connect_s=120))

    started = time.monotonic()
    with pytest.raises(TransportError, match=r"(?i)certificate"):
        await connection.connect()

    assert time.monotonic() - started < 60
