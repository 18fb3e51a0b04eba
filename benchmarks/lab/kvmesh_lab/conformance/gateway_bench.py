"""The bench of the cases through Envoy: gateways of several kinds, model servers, clients."""

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from kvmesh.app.picker.envoy_options import Address, GatewayOptions
from kvmesh.app.picker.envoy_server import EnvoyServer
from kvmesh.errors import TransportError
from kvmesh_lab.conformance.bench import Target
from kvmesh_lab.conformance.bodies import chat_body, first_difference
from kvmesh_lab.conformance.case import Broken, NotTried, holds
from kvmesh_lab.conformance.gateway_client import Got, Sent, send
from kvmesh_lab.conformance.gateway_endpoints import ASK, Echo, ModelServer
from kvmesh_lab.conformance.gateway_relay import Relay

Kind = Literal["plain", "closed", "open", "narrowed", "strange", "headers", "silent", "trailing"]
"""`plain` asks the picker itself; `closed` and `open` through a relay, by their failure mode;
`narrowed` allows the first endpoint only, and lets clients' headers through; `strange` allows
only endpoints that the picker does not have; `headers` shows the picker an answer's headers only,
`silent` nothing of it; `trailing` passes trailers on.
"""

OK = 200
NOWHERE = ("192.0.2.1:8000",)
"""An address of documentation (RFC 5737): no pool has it."""

POLL_S = 0.05


class GatewayBench:
    """A picker behind Envoys that are started when first asked for."""

    def __init__(self, target: Target, servers: Sequence[ModelServer], folder: Path) -> None:
        self.target = target
        self.servers = servers
        self.relay = Relay(target.address)
        self._folder = folder
        self._envoys: dict[Kind, EnvoyServer] = {}
        self._unserved = ""

    async def close(self) -> None:
        """Stop all Envoys, and the relay."""
        await asyncio.gather(*(envoy.stop() for envoy in self._envoys.values()))
        await self.relay.die()

    async def gateway(self, kind: Kind = "plain") -> str:
        """Return the address of a gateway of that kind, once requests get through it."""
        if self._unserved:
            raise NotTried(self._unserved)
        if kind in self._envoys:
            return str(self._envoys[kind].address)
        relayed = kind in {"closed", "open"}
        if relayed and not self.relay.runs:
            await self.relay.start()
        envoy = EnvoyServer(self._options(kind, relayed=relayed), self._folder / kind)
        self._envoys[kind] = envoy
        try:
            await envoy.start()
        except TransportError as error:
            raise NotTried(str(error)) from error
        if kind == "strange":
            return str(envoy.address)  # serves nobody
        try:
            await self.until_served(str(envoy.address))
        except Broken as error:
            self._unserved = str(error)
            raise
        return str(envoy.address)

    def _options(self, kind: Kind, *, relayed: bool) -> GatewayOptions:
        narrowed = kind == "narrowed"
        subsets: dict[Kind, tuple[str, ...]] = {
            "narrowed": (self.servers[0].address,),
            "strange": NOWHERE,
        }
        return GatewayOptions(
            pickers=(_address(self.relay.address if relayed else self.target.address),),
            endpoints=tuple(_address(one.address) for one in self.servers),
            fail_open=kind == "open",
            subset=subsets.get(kind),
            response_body="NONE" if kind in {"headers", "silent"} else "FULL_DUPLEX_STREAMED",
            response_headers=kind != "silent",
            http1_trailers=kind == "trailing",
            retries=0 if kind == "trailing" else 2,  # both: the body goes twice, Envoy #45470
            stripped=not narrowed,
            pick_source="header" if narrowed else "metadata",
            picker_ca=self.target.tls.path if self.target.tls is not None else None,
        )

    async def until_served(self, address: str) -> None:
        """Return once a chat is served where the picker said. Raises `Broken` if none is in time.

        With failure mode open, a gateway serves before it knows that its picker is back.
        """
        deadline = asyncio.get_running_loop().time() + 2 * self.target.patience_s
        while True:
            got = await self.send(self.chat(), address)
            if got.status == OK and got.complete and echo_of(got).reported:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise Broken(
                    f"no chat is served through the gateway: {got} {bytes(got.body[:200])!r}"
                )
            await asyncio.sleep(POLL_S)

    async def send(self, sent: Sent, address: str = "") -> Got:
        """Return the answer to a request, by default through the plain gateway."""
        return await send(address or await self.gateway(), sent, 6 * self.target.patience_s)

    def chat(self, size: int = 600, *, seed: int = 0, answer: str = "echo") -> Sent:
        """Return a chat request that model servers answer as `answer` says."""
        body = chat_body(self.target.model, size, seed=seed)
        return Sent(path=self.target.path, body=body, headers=((ASK, answer),))


def echo_of(got: Got) -> Echo:
    """Return what a model server said of a request. Raises `Broken` for any other answer."""
    whole(got)
    try:
        return msgspec.json.decode(got.body, type=Echo)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Broken(f"status 200, but not what a model server said: {got}") from error


def whole(got: Got, status: int = OK) -> Got:
    """Return the answer. Raises `Broken` unless it is complete and has the status."""
    holds(
        got.complete and got.status == status, f"expected {status}: {got} {bytes(got.body[:120])!r}"
    )
    return got


def same_request(sent: Sent, echo: Echo) -> None:
    """Raise `Broken` unless the body reached the model server as it was sent."""
    digest = hashlib.sha256(sent.body).hexdigest()
    holds(
        echo.digest == digest,
        f"the body was damaged: {echo.size} of {len(sent.body)} bytes reached the model server",
    )


def same_answer(expected: bytes, got: Got) -> None:
    """Raise `Broken` unless the answer is whole and byte-identical."""
    whole(got)
    body = bytes(got.body)
    holds(
        body == expected,
        f"the answer was damaged, with status 200: {first_difference(expected, body)}",
    )


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return Address(host.strip("[]"), int(port))
