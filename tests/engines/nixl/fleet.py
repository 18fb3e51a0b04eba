"""vLLM's prefill and decode engines on this CPU, KV caches moved by NIXL, a router over them."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tests.engines.engine import VLLM_ENVIRONMENT, Engine, vllm_engine
from tests.engines.processes import Process, eventually, free_ports, kvmesh

BLOCKS = 257
LEASE_S = 6
THRESHOLD = 64
CONNECTORS: Mapping[str, str] = {"nixl": "NixlConnector", "nixl-push": "NixlPushConnector"}
ROLES: Mapping[str, str] = {"prefill": "kv_producer", "decode": "kv_consumer"}
UCX = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}


class NixlFleet(msgspec.Struct):
    """Engines by name (`p…` prefill, `d…` decode), and the router over them."""

    engines: dict[str, Engine]
    router: Process
    url: str
    http: httpx.Client

    def post(self, path: str, **body: Any) -> httpx.Response:
        """Ask the router."""
        return self.http.post(self.url + path, json={"model": "tiny", "temperature": 0.0} | body)

    def direct(self, name: str, path: str, **body: Any) -> httpx.Response:
        """Ask one engine."""
        url = self.engines[name].url + path
        return self.http.post(url, json={"model": "tiny", "temperature": 0.0} | body)

    def answering(self) -> set[str]:
        """Return the workers that the router gives requests."""
        workers = self.http.get(f"{self.url}/v1/status").json()["workers"]
        return {one["worker"] for one in workers if one["usable"]}

    def wait_for(self, *names: str) -> None:
        """Return once the router uses these engines and no other."""

        def ready() -> bool:
            self.router.check()
            return self.answering() == {*names}

        eventually(ready, f"{names} are usable", within_s=60.0)

    def wait_until_idle(self, *names: str) -> None:
        """Return once nothing is booked, and these engines have given every block back."""

        def idle() -> bool:
            workers = self.http.get(f"{self.url}/v1/status").json()["workers"]
            booked = sum(one["active_requests"] for one in workers)
            used = [
                _used(self.http.get(self.engines[name].url + "/metrics").text) for name in names
            ]
            return not booked and not any(used)

        eventually(idle, f"{names} hold nothing", within_s=8.0 * LEASE_S)


def _used(page: str) -> float:
    lines = [one for one in page.splitlines() if one.startswith("vllm:kv_cache_usage_perc")]
    return max(float(one.rpartition(" ")[2]) for one in lines)


def nixl_engine(python: Path, model: Path, role: str, connector: str, log: Path) -> Engine:
    """Return a vLLM of that role."""
    port, events, replay, side = free_ports(4)
    config = {
        "kv_connector": CONNECTORS[connector],
        "kv_role": ROLES[role],
        "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {"kv_lease_duration": LEASE_S},
    }
    more = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side),
    }
    return vllm_engine(
        python,
        model,
        (port, events, replay),
        log,
        blocks=BLOCKS,
        more=("--kv-transfer-config", json.dumps(config)),
        environment=VLLM_ENVIRONMENT | UCX | more,
    )


@contextlib.contextmanager
def running(
    directory: Path, python: Path, model: Path, connector: str, names: Sequence[str]
) -> Iterator[NixlFleet]:
    """Start the engines, and a router that splits whatever may be split."""
    roles = {name: "prefill" if name.startswith("p") else "decode" for name in names}
    engines = {
        name: nixl_engine(python, model, role, connector, directory / f"{name}.log")
        for name, role in roles.items()
    }
    (port,) = free_ports(1)
    workers = [
        f"--worker={name}={engines[name].url},role={role},connector={connector}"
        for name, role in roles.items()
    ]
    router = kvmesh(
        *("router", "--http-port", str(port), *workers, "--tokenizer", str(model)),
        *("--prefill-split", "always", "--prefill-threshold", str(THRESHOLD)),
        # Kernels are compiled as they are first needed, on a machine with other things to do.
        *("--parity-sample", "0", "--hang-s", "60"),
        log=directory / "router.log",
    )
    fleet = NixlFleet(engines, router, f"http://127.0.0.1:{port}", httpx.Client(timeout=120.0))
    try:
        for engine in engines.values():
            engine.start()
        for engine in engines.values():
            engine.wait()
        router.start()
        fleet.wait_for(*names)
        yield fleet
    finally:
        fleet.http.close()
        router.stop()
        for engine in engines.values():
            engine.stop()
