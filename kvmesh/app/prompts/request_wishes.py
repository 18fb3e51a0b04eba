"""What a request wishes of the router: by headers, by the body's field `kvmesh`, by its model."""

from typing import Final, NamedTuple

import msgspec

from kvmesh._native import Names, Scanned
from kvmesh.app.prompts.target_wishes import FOREIGN, read_targets
from kvmesh.app.prompts.turn_names import (
    AIPERF,
    NAMING_HEADERS,
    NO_HINTS,
    OWN_HEADERS,
    Hints,
    Selected,
    TurnNames,
    body_names,
    cache_key_of,
    head_names,
    key_names,
    own_names,
    read_hints,
)
from kvmesh.app.prompts.wish_values import (
    NO_EXTENSION,
    Given,
    first,
    header_name,
    mode_in,
    name_in,
    names_in,
    number_in,
    ordinary_in,
    priority_in,
)
from kvmesh.bounds import MAX_SECONDS, MAX_TOKENS, MAX_WEIGHT
from kvmesh.core.admission.access import KEY_HEADER, ROLES_HEADER
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.chat.inference import ChatRequest, Extension, InferenceRequest
from kvmesh.core.chat.retention import cache_control_s, retention_s
from kvmesh.core.cost.targets import (
    NO_DEFAULTS,
    NO_TARGETS,
    TargetDefaults,
    targets_of,
)
from kvmesh.core.dispatch.wishes import Wishes
from kvmesh.core.routing.model_policy import NO_POLICY, ModelPolicies
from kvmesh.core.routing.sessions import SESSION, affinity_of, session_key
from kvmesh.transport.http.forward.plan import NO_HOLD
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.wire.headers import Headers

_PREFIX: Final = b"x-kvmesh-"
_TIMEOUT: Final = "x-kvmesh-timeout-s"
_NOBODY: Final = InferenceRequest()
_APART: Final = OWN_HEADERS | {ROLES_HEADER, KEY_HEADER, NO_HOLD[0]}
"""Headers of ours that are read elsewhere."""

_UNCHOOSING: Final = {_TIMEOUT, "x-kvmesh-priority"}
"""Headers of ours that say nothing of which worker to take."""

_OVERRIDES: Final = {
    "x-kvmesh-router-mode": "mode",
    "x-kvmesh-cost": "cost",
    "x-kvmesh-temperature": "temperature",
    "x-kvmesh-overlap-score-weight": "overlap_score_weight",
    "x-kvmesh-worker-id": "worker",
}
"""Headers, and fields of the body, by which a client takes the choice from the router."""


class RequestWishes(Wishes, frozen=True):
    """Wishes, and whose they are.

    `names` says whose turn it is, None: nobody's. `named`: the client chose the request's id.
    """

    named: bool = False
    names: TurnNames | None = None


class HeadWishes(msgspec.Struct, frozen=True):
    """What the headers tell; `given` are all of ours but those that name programs, and others'
    targets, by name. `encoded`: the body is not as it will be read.
    """

    tenant: str = ""
    session: str = ""
    given: Given = {}
    timeout_s: float | None = None
    named: bool = False
    encoded: bool = False
    names: TurnNames | None = None


_SILENT: Final = HeadWishes()
"""What most heads tell."""

NO_WISHES: Final = RequestWishes()


MOST_KNOWN: Final = 1024
MOST_KNOWN_BYTES: Final = 512
"""Of so many heads the wishes are kept, of those whose headers of ours have so many bytes."""


class WishOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`obeyed` False: clients may not choose policy, worker, labels or urgency.

    `tenant_header` names the header that tells the tenant. `targets`
    are those of requests that name none.
    """

    obeyed: bool = True
    tenant_header: str = ""
    targets: TargetDefaults = NO_DEFAULTS


class WishReader:
    """Reads wishes in one pass over the headers. Header, body, model's policy: the first wins."""

    def __init__(self, options: WishOptions, policies: ModelPolicies) -> None:
        self._obeyed = options.obeyed
        self._tenant = options.tenant_header.lower().encode()
        self._session = SESSION
        self._policies = policies
        self._targets = options.targets
        others = {self._tenant, self._session, b"content-encoding"} - {b""}
        self._repeated = Names(NAMING_HEADERS | FOREIGN | others, _PREFIX)
        self._asked = Names(NAMING_HEADERS | FOREIGN | others | {b"x-request-id"}, _PREFIX)
        self._known: dict[tuple[object, ...], RequestWishes] = {}

    def read(
        self, request: Request, parsed: InferenceRequest | ChatRequest = _NOBODY
    ) -> RequestWishes:
        """Return a request's wishes. Raises `RequestError` naming header or field."""
        selected = request.head.select(self._asked)
        head = self._of_headers(request, selected) if selected else _SILENT
        names, tenant = head.names, head.tenant
        if parsed.kvmesh is not None:
            names = own_names(parsed.kvmesh, names, tenant)
        key = cache_key_of(parsed) if parsed.prompt_cache_key else ""
        if names is None and (parsed.metadata or key):
            names = body_names(parsed, request.path, key, tenant)
        hints = read_hints(parsed.nvext) if parsed.nvext else NO_HINTS
        keep_s = 0
        if parsed.prompt_cache_retention:
            keep_s = retention_s(parsed.prompt_cache_retention)
        elif request.path.endswith("/messages"):
            keep_s = cache_control_s(request.body)
        body = _BodyWishes(
            *(parsed.model or "", parsed.urgency, names, key, keep_s, parsed.kvmesh, hints)
        )
        return self._join(head, body)

    def read_scanned(self, request: Request, scanned: Scanned) -> RequestWishes | None:
        """Do as `read` for a body without fields of ours; None where it is encoded."""
        head = request.head
        selected, asks = head.select(self._asked), scanned.asks
        if len(selected) == 1 and selected[0] == NO_HOLD:
            selected = ()  # what a meta-router adds is no wish
        if not (selected or asks or self._policies.any or self._targets.any):
            return NO_WISHES
        if asks or self._policies.any:
            return self._of_scanned(request, selected, scanned)
        # What clients say of themselves is the same in each of their requests.
        known = self._known.get(tuple(selected))
        return self._read_anew(request, selected, scanned) if known is None else known

    def _read_anew(
        self, request: Request, selected: Headers, scanned: Scanned
    ) -> RequestWishes | None:
        """Read the wishes of a head that is not known, and keep them if they are short.

        What is the same in each request of a client is found by that alone: its id never is, and
        the name of the client counts where a header means something from some clients only.
        """
        head = request.head
        said: tuple[object, ...] = tuple(selected)
        named, told = head.get(b"x-request-id") is not None, head.get(AIPERF) is not None
        if named or told:
            client = head.get(b"user-agent") if told else b""
            repeated = head.select(self._repeated) if named else selected
            said = (*repeated, (b"", client, named))
        known = self._known.get(said)
        if known is None:
            known = self._of_scanned(request, selected, scanned)
            if known is not None and sum(len(value) for _, value in selected) <= MOST_KNOWN_BYTES:
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()
                self._known[said] = known
        return known

    def _of_scanned(
        self, request: Request, selected: Headers, scanned: Scanned
    ) -> RequestWishes | None:
        head = self._of_headers(request, selected) if selected else _SILENT
        if head.encoded:
            return None
        names, key = head.names, scanned.cache_key
        if names is None and key:
            names = key_names(key, head.tenant)
        body = _BodyWishes(scanned.model, scanned.urgency, names, key, scanned.keep_s)
        return self._join(head, body)

    def _join(self, head: HeadWishes, body: "_BodyWishes") -> RequestWishes:
        """Return what head and body wish together."""
        tenant, given, hints = head.tenant, head.given, body.hints
        urgency = hints.priority or body.urgency
        extension = body.extension or NO_EXTENSION
        session = head.session or extension.session or ""
        policies = self._policies
        policy = policies.find(body.model) if policies.any else NO_POLICY
        if not self._obeyed:
            extension = Extension(session=extension.session, output_tokens=extension.output_tokens)
            given = {}
        default = self._targets.find(tenant) if self._targets.any else NO_TARGETS
        # Nearly every request: a fifth of the time of what follows.
        if given.keys() <= _UNCHOOSING and body.extension is None and policy is NO_POLICY:
            return RequestWishes(
                session=session_key(session, tenant) if session else "",
                tenant=tenant,
                output_tokens=hints.output_tokens,
                priority=priority_in(given, extension, urgency) if self._obeyed else 0,
                timeout_s=head.timeout_s,
                named=head.named,
                targets=targets_of(default.ttft_ms, default.tpot_ms),
                names=body.names,
                affinity=affinity_of(body.cache_key, tenant) if body.cache_key else 0,
                keep_s=body.keep_s,
                chooses=default != NO_TARGETS or hints.output_tokens is not None,
            )
        pinned = _pinned(given, extension)
        # A model's weight is one of its own formula.
        cost, weight = policy.kv_cost, policy.kv_overlap_score_weight
        named = name_in(given, "cost") or extension.cost
        if named is not None and named != cost:
            cost, weight = named, None
        return RequestWishes(
            **ordinary_in(given, extension, policy),
            mode=mode_in(given, extension, policy),
            cost=cost,
            overlap_score_weight=first(
                number_in(given, "overlap-score-weight", MAX_WEIGHT),
                extension.overlap_score_weight,
                weight,
            ),
            pinned_worker=WorkerId(pinned) if pinned else None,
            allowed_workers=_allowed(given, extension),
            output_tokens=_output(given, extension, hints),
            priority=priority_in(given, extension, urgency) if self._obeyed else 0,
            session=session_key(session, tenant) if session else "",
            tenant=tenant,
            timeout_s=head.timeout_s,
            named=head.named,
            overridden=_overridden(given, extension),
            targets=read_targets(given, extension, policy, default),
            names=body.names,
            affinity=affinity_of(body.cache_key, tenant) if body.cache_key else 0,
            keep_s=body.keep_s,
            chooses=True,
        )

    def _of_headers(self, request: Request, selected: Headers) -> HeadWishes:
        """Return what the headers tell that were asked for. Raises `RequestError` naming one."""
        given: dict[str, str] = {}
        naming: Selected = {}
        tenant = session = ""
        named = encoded = False
        for name, value in selected:
            if name in NAMING_HEADERS:
                naming.setdefault(name, value)
            if name == self._tenant:
                tenant = header_name(name, value)
            elif name == self._session:
                session = header_name(name, value)
            elif name in FOREIGN or (name.startswith(_PREFIX) and name not in _APART):
                given[name.decode("latin-1")] = value.decode("latin-1").strip()
            elif name == b"x-request-id":
                named = True
            elif name == b"content-encoding":
                encoded = True
        names = None
        if naming or session:
            names = head_names(naming, session, tenant, request.header(b"user-agent") or b"")
        timeout_s = read_timeout_s(request) if _TIMEOUT in given else None
        return HeadWishes(tenant, session, given, timeout_s, named, encoded, names)


class _BodyWishes(NamedTuple):
    """What routing reads of the wishes in a body: whose turn it is, its prompt cache key, for how
    many seconds its prompt shall be kept, the field `kvmesh`.
    """

    model: str
    urgency: int
    names: TurnNames | None
    cache_key: str = ""
    keep_s: int = 0
    extension: Extension | None = None
    hints: Hints = NO_HINTS


def named_workers(request: Request, extension: Extension = NO_EXTENSION) -> frozenset[str]:
    """Return the one worker a request names, else those it may go to; nobody: any."""
    headers = ("x-kvmesh-worker-id", "x-kvmesh-allowed-workers")
    values = ((name, request.header(name.encode())) for name in headers)
    given = {name: value.decode("latin-1").strip() for name, value in values if value is not None}
    if pinned := _pinned(given, extension):
        return frozenset((pinned,))
    return frozenset(_allowed(given, extension) or ())


def read_timeout_s(request: Request) -> float | None:
    """Return for how long the client will wait for the whole answer. Raises `RequestError`."""
    value = request.header(b"x-kvmesh-timeout-s")
    if value is None:
        return None
    selected = {"x-kvmesh-timeout-s": value.decode("latin-1").strip()}
    return number_in(selected, "timeout-s", MAX_SECONDS) or None


def _overridden(given: Given, extension: Extension) -> bool:
    """Return whether the client says how to choose: a model's policy is the router's own."""
    return any(
        given.get(header) or getattr(extension, field) is not None
        for header, field in _OVERRIDES.items()
    )


def _pinned(given: Given, extension: Extension) -> str | None:
    return name_in(given, "worker-id") or extension.worker


def _output(given: Given, extension: Extension, hints: Hints) -> int | None:
    tokens = number_in(given, "output-tokens", MAX_TOKENS)
    selected = hints.output_tokens if extension.output_tokens is None else extension.output_tokens
    return selected if tokens is None else int(tokens)


def _allowed(given: Given, extension: Extension) -> frozenset[WorkerId] | None:
    if "x-kvmesh-allowed-workers" not in given and extension.allowed_workers is None:
        return None
    names = names_in(given, "allowed-workers", extension.allowed_workers or ())
    return frozenset(map(WorkerId, names))
