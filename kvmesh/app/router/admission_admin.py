"""`/admin/admission`: the bounds of admission, looked at and changed while the router runs."""

from hmac import compare_digest
from typing import get_args

import msgspec

from kvmesh.app.front.front import Routes, answer_json
from kvmesh.app.router.admission_share import AdmissionShare
from kvmesh.app.serve.admission import AdmissionLimits
from kvmesh.core.admission.queue import AdmissionStatistics, QueuePolicy
from kvmesh.errors import RequestError
from kvmesh.settings.requests import AdmissionSettings
from kvmesh.settings.secret_file import read_secret
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.request import Request

PATH = "/admin/admission"
TOKEN_HEADER = b"x-kvmesh-admin-token"
LOOPBACK = ("127.", "::1", "::ffff:127.")
UNAUTHORIZED = 401
FORBIDDEN = 403


class AdmissionView(msgspec.Struct, frozen=True):
    """The bounds in force, and what became of requests under them at this replica.

    A change is taken by all `replicas` within some seconds.
    """

    limits: AdmissionLimits
    replicas: list[str]
    statistics: AdmissionStatistics


class AdmissionAdmin:
    """Answers for one router. Its path is not under /v1/, so no meta-router forwards it.

    Raises `ConfigError` when the token's file cannot be read or is empty.
    """

    def __init__(self, share: AdmissionShare, settings: AdmissionSettings) -> None:
        self._share = share
        self._token = read_secret(settings.admin_token_file, "--admin-token-file")

    def mount(self, routes: Routes) -> None:
        """Serve the path."""
        routes.add("GET", PATH, self._show)
        routes.add("PUT", PATH, self._change)

    def _show(self, exchange: Exchange) -> None:
        gate = self._share.gate
        view = AdmissionView(gate.limits, self._share.taken_by(), gate.statistics())
        answer_json(exchange, view)

    def _change(self, exchange: Exchange) -> None:
        """Take any of the limits; those not named stay."""
        self._authorize(exchange.request)
        self._share.change(changed(self._share.gate.limits, exchange.request.body))
        self._show(exchange)

    def _authorize(self, request: Request) -> None:
        if self._token:
            # With --api-keys the authorization header is taken off: it holds the client's key.
            sent = request.header(TOKEN_HEADER)
            if sent is None:
                sent = (request.header(b"authorization") or b"").removeprefix(b"Bearer ")
            if not compare_digest(sent, self._token):
                raise RequestError(
                    f"{PATH}: send the token of --admin-token-file as a bearer, or in the header"
                    f" {TOKEN_HEADER.decode()}",
                    status=UNAUTHORIZED,
                )
        elif not all(map(is_loopback, hops(request))):
            raise RequestError(
                f"{PATH}: without --admin-token-file only this machine may change it",
                status=FORBIDDEN,
            )


def hops(request: Request) -> list[str]:
    """Return the addresses a request came by: its peer's, and those proxies tell."""
    told = request.header(b"x-forwarded-for") or b""
    listed = [one.strip() for one in told.decode("latin-1").split(",")]
    return [request.client, *(one for one in listed if one)]


def is_loopback(address: str) -> bool:
    """Return whether an address is this machine's own."""
    return address.startswith(LOOPBACK)


def changed(limits: AdmissionLimits, body: bytes) -> AdmissionLimits:
    """Return `limits` with the fields of the JSON object `body`. Raises `RequestError`."""
    try:
        wishes = msgspec.json.decode(body, type=dict[str, int | float | str])
        merged = msgspec.convert(msgspec.to_builtins(limits) | wishes, AdmissionLimits)
    except msgspec.MsgspecError as error:
        known = msgspec.json.encode(limits).decode()
        policies = ", ".join(get_args(QueuePolicy))
        raise RequestError(
            f"{PATH}: {error}; send any of {known}; queue_policy is one of {policies}"
        ) from error
    if wrong := merged.wrong():
        raise RequestError(f"{PATH}: {wrong}")
    return merged
