"""What gateways name in headers of their own, brought to the headers that a router obeys.

Source: pkg/epp/metadata/consts.go of llm-d/llm-d-router (read 2026-08): each header has a name of
llm-d and, before it, one of the Gateway API Inference Extension.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from kvmesh.app.picker.exchange import PickExchange
from kvmesh.bounds import MAX_NAME, MAX_SECONDS, UNREADABLE, is_name, real_number, shown
from kvmesh.errors import RequestError
from kvmesh.transport.http.server.request import Request

FAIRNESS: Final = (b"x-llm-d-inference-fairness-id", b"x-gateway-inference-fairness-id")
OBJECTIVE: Final = (b"x-llm-d-inference-objective", b"x-gateway-inference-objective")
MODEL: Final = (b"x-llm-d-model-name-rewrite", b"x-gateway-model-name-rewrite")
TARGETS: Final = (
    (b"x-llm-d-slo-ttft-ms", b"x-slo-ttft-ms"),
    (b"x-llm-d-slo-tpot-ms", b"x-slo-tpot-ms"),
)
"""Checked here and passed on: `app/prompts/target_wishes.py` reads them."""

PRIORITY: Final = b"x-kvmesh-priority"
MOST_REWRITTEN: Final = 16 << 20
"""Bytes of a body whose model is replaced on the event loop: some 10 ms."""

_NAMES: Final = frozenset(
    name for names in (FAIRNESS, OBJECTIVE, MODEL, *TARGETS) for name in names
)
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class GatewayWishes:
    """Reads a request's headers before it is decided. An adapter of a `PickDoor`.

    A fairness id is the tenant, unless `tenant_header` is there; an objective's priority, where
    `priority_of` knows the objective, counts before what the client says. Another model's name goes
    into the body. Raises `RequestError` naming the header.
    """

    def __init__(self, tenant_header: str, priority_of: Callable[[str], int | None] | None) -> None:
        self._tenant = tenant_header.lower().encode()
        self._priority_of = priority_of

    def __call__(self, exchange: PickExchange) -> None:
        """Take what the headers say of one request."""
        request = exchange.request
        wishes = {name: value for name, value in reversed(request.headers) if name in _NAMES}
        if not wishes:
            return
        for names in TARGETS:
            _check_target(wishes, names)
        fairness, objective = _name(wishes, FAIRNESS), _name(wishes, OBJECTIVE)
        if fairness and self._tenant and request.header(self._tenant) is None:
            request.replace_headers([*request.headers, (self._tenant, fairness)])
        if objective and self._priority_of is not None:
            priority = self._priority_of(objective.decode("latin-1"))
            if priority is not None:
                kept = [one for one in request.headers if one[0] != PRIORITY]
                request.replace_headers([*kept, (PRIORITY, b"%d" % priority)])
        model = _name(wishes, MODEL)
        if model and not exchange.unread:
            _rewrite(request, _found(wishes, MODEL)[0], model.decode("utf-8", "replace"))


def _found(reported: dict[bytes, bytes], names: tuple[bytes, ...]) -> tuple[bytes, bytes]:
    """Return the header that counts and its value; the first of `names` that is there."""
    return next(
        ((name, reported[name].strip()) for name in names if name in reported), (names[0], b"")
    )


def _name(reported: dict[bytes, bytes], names: tuple[bytes, ...]) -> bytes:
    header, value = _found(reported, names)
    if value and not is_name(value.decode("latin-1")):
        raise RequestError(
            f"header {header.decode()} is {shown(value.decode('latin-1'))}: a name has at most "
            f"{MAX_NAME} characters, none of them a control character",
            param=header.decode(),
        )
    return value


def _check_target(reported: dict[bytes, bytes], names: tuple[bytes, ...]) -> None:
    header, value = _found(reported, names)
    most = 1000 * MAX_SECONDS
    if value and real_number(value.decode("latin-1"), 0.0, most) is None:
        raise RequestError(
            f"header {header.decode()} is {shown(value.decode('latin-1'))}: use milliseconds, a "
            f"number from 0 to {most:g}",
            param=header.decode(),
        )


def _rewrite(request: Request, header: bytes, model: str) -> None:
    """Replace the model that the body names; a body that is no JSON object names none."""
    if len(request.body) > MOST_REWRITTEN:
        raise RequestError(
            f"header {header.decode()}: a body of {len(request.body):,} bytes is not rewritten; "
            f"send {MOST_REWRITTEN:,} at most, or the model's name in it",
            param=header.decode(),
            status=413,
        )
    try:
        fields = _fields.decode(request.body)
    except UNREADABLE:
        return
    fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    request.replace_body(msgspec.json.encode(fields))
