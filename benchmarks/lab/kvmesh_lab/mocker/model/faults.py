"""Faults of a simulated engine: which request meets which, drawn by seed and by phase."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from itertools import accumulate
from math import fsum, inf, isfinite
from typing import Final, Literal, get_args

import msgspec

from kvmesh.core.cost.selection import Random
from kvmesh.errors import ConfigError

FaultKind = Literal[
    "status",
    "hang",
    "slow",
    "reset",
    "cut",
    "garbage",
    "half-head",
    "dead",
    "bad-answer",
    "die-after",
    "hang-after",
]
BadAnswer = Literal[
    "empty-body",
    "empty-stream",
    "random-bytes",
    "html",
    "error-200",
    "error-event",
    "wrong-model",
    "half-json",
    "no-done",
    "no-tokens",
]
"""Ways to answer 200 with what is no answer."""

BAD_ANSWERS: Final[Mapping[str, BadAnswer]] = {one: one for one in get_args(BadAnswer)}

MAX_FAULTS: Final = 32
"""Faults of one engine at most."""
MAX_SECONDS: Final = 86_400
MAX_FACTOR: Final = 1_000.0
SLOW_FACTOR: Final = 10.0
"""How many times as long a request takes that meets `slow`, unless told."""
DEAD_MESSAGE: Final = "EngineCore encountered an issue. See stack trace (above) for the root cause."
"""What vLLM answers when its engine process has died (EngineDeadError)."""

_PLAIN: Final[Mapping[str, FaultKind]] = {
    "hang": "hang",
    "reset": "reset",
    "cut": "cut",
    "garbage": "garbage",
    "half-head": "half-head",
    "dead": "dead",
}
_COUNTED: Final[Mapping[str, FaultKind]] = {"die-after": "die-after", "hang-after": "hang-after"}
"""Kinds that come behind so many tokens of a stream."""
MAX_FAULT_TOKENS: Final = 1 << 20
_TYPES: Final[Mapping[int, str]] = {400: "BadRequestError", 404: "NotFoundError"}
_STATUS: Final = re.compile("[45][0-9][0-9]")
_OVERLOAD: Final = frozenset({429, 503})
_ROUNDING: Final = 1e-9
_SHOWN_CHARACTERS: Final = 60


class Fault(msgspec.Struct, frozen=True):
    """What happens to a request. `status` is that of the kinds `status` and `dead`.

    `retry_after_s` comes with a status, `factor` (1 and more) with `slow`, `answer` with
    `bad-answer`, `tokens` (1 and more) with `die-after` and `hang-after`.
    """

    kind: FaultKind
    status: int = 0
    retry_after_s: int | None = None
    factor: float = 1.0
    answer: BadAnswer | None = None
    tokens: int = 0

    @property
    def name(self) -> str:
        """Return what the fault is counted as: the word by which it is asked for."""
        return str(self.status) if self.kind == "status" else self.answer or self.kind

    def error_body(self) -> bytes:
        """Return the answer of a status as vLLM words errors."""
        registered = {int(one): one.phrase for one in HTTPStatus}
        kind = _TYPES.get(self.status, registered.get(self.status, "Error"))
        message = f"a fault was asked for: {self.status}"
        if self.kind == "dead":
            message = DEAD_MESSAGE
        inner = {"message": message, "type": kind, "param": None, "code": self.status}
        return msgspec.json.encode({"error": inner})


class FaultOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The faults of one engine, as its flags and `POST /kvmesh/faults` tell them.

    `fail` has `SHARE:KIND[=VALUE]` each, `flap` is `GOOD:BAD` in seconds or "" for always bad.
    The others are about the engine, whatever the phase: its steps take `slowdown` times as long,
    the next one `first_pause_s` more, as one that compiles; with `stall` it takes none, though it
    keeps its requests; with `hang_health` it answers no GET request.
    """

    fail: tuple[str, ...] = ()
    flap: str = ""
    fail_health: bool = False
    fail_seed: int = 0
    slowdown: float = 1.0
    first_pause_s: float = 0.0
    stall: bool = False
    hang_health: bool = False


class FaultCounts(msgspec.Struct, frozen=True):
    """How many generation requests came since the faults were set, and what they met, by name."""

    requests: int
    met: dict[str, int]


class FaultPlan:
    """Draws each request's fault. The n-th request draws the same from the same `rng`, in whatever
    phase it comes; the phases repeat from `began_s` on, the good one first.
    """

    def __init__(self, options: FaultOptions, rng: Random, began_s: float) -> None:
        """Raise `ConfigError` naming the value that makes no sense."""
        check_faults(options)
        faults = parse_faults(options.fail, "--fail")
        edges = accumulate(share for share, _ in faults)
        self._faults = [(edge, fault) for edge, (_, fault) in zip(edges, faults, strict=True)]
        self._phases = parse_flap(options.flap)
        self._fails_health = options.fail_health
        self._rng = rng
        self._began_s = began_s
        self._requests = 0
        self._met: Counter[str] = Counter()

    def is_bad(self, now: float) -> bool:
        """Return whether faults apply now."""
        if self._phases is None:
            return True
        good_s, bad_s = self._phases
        return (now - self._began_s) % (good_s + bad_s) >= good_s

    def fails_health(self, now: float) -> bool:
        """Return whether a health probe is answered 503 now."""
        return self._fails_health and self.is_bad(now)

    def draw(self, now: float) -> Fault | None:
        """Return what a request that has just come meets, and count it."""
        self._requests += 1
        point = self._rng.random()
        if not self.is_bad(now):
            return None
        for edge, fault in self._faults:
            if point < edge or edge > 1.0 - _ROUNDING:
                self._met[fault.name] += 1
                return fault
        return None

    def counts(self) -> FaultCounts:
        """Return what was drawn so far."""
        return FaultCounts(self._requests, dict(self._met))


def check_faults(options: FaultOptions) -> None:
    """Raise `ConfigError` naming the value that makes no sense."""
    parse_faults(options.fail, "--fail")
    parse_flap(options.flap)
    if not 1.0 <= options.slowdown <= MAX_FACTOR:
        raise ConfigError(f"--slowdown {options.slowdown:g}: must be from 1 to {MAX_FACTOR:,.0f}")
    if not 0.0 <= options.first_pause_s <= MAX_SECONDS:
        raise ConfigError(
            f"--first-pause-s {options.first_pause_s:g}: must be from 0 to {MAX_SECONDS:,}"
        )


def parse_faults(texts: Sequence[str], place: str) -> list[tuple[float, Fault]]:
    """Return each share with its fault; `place` is where the texts stand, for the message.

    Raises `ConfigError`.
    """
    if len(texts) > MAX_FAULTS:
        raise ConfigError(f"{place}: {len(texts)} faults are more than {MAX_FAULTS}; join some")
    faults = [_parse_fault(text, place) for text in texts]
    total = fsum(share for share, _ in faults)
    if total > 1.0 + _ROUNDING:
        raise ConfigError(
            f"{place}: the shares sum up to {total:g}; lower them to 1 at most, a request meets "
            "one fault"
        )
    return faults


def parse_flap(text: str) -> tuple[float, float] | None:
    """Return the seconds of good and bad phases; None for "". Raises `ConfigError`."""
    if not text:
        return None
    good, colon, bad = text.partition(":")
    good_s, bad_s = _number(good), _number(bad)
    if not (colon and 0 < good_s <= MAX_SECONDS and 0 < bad_s <= MAX_SECONDS):
        raise ConfigError(
            f"--flap {_shown(text)}: write GOOD:BAD, seconds above 0 and up to {MAX_SECONDS:,} "
            "each, e.g. 2:2"
        )
    return good_s, bad_s


def _parse_fault(text: str, place: str) -> tuple[float, Fault]:
    first, colon, rest = text.partition(":")
    share = _number(first)
    if not (colon and 0.0 <= share <= 1.0):
        raise ConfigError(
            f"{place} {_shown(text)}: write SHARE:KIND with a share from 0 to 1, e.g. 0.3:500"
        )
    word, equals, value = rest.partition("=")
    where = f"{place} {_shown(text)}"
    if word == "slow":
        return share, Fault("slow", factor=_factor(value, where) if equals else SLOW_FACTOR)
    if _STATUS.fullmatch(word):
        status = int(word)
        if not equals:
            return share, Fault("status", status)
        return share, Fault("status", status, _retry_after_s(status, value, where))
    if word in _COUNTED:
        return share, Fault(_COUNTED[word], tokens=_tokens(word, value, where))
    kind, answer = _PLAIN.get(word), BAD_ANSWERS.get(word)
    if kind is None and answer is None:
        words = ", ".join((*_PLAIN, *_COUNTED, *BAD_ANSWERS))
        raise ConfigError(f"{where}: no such fault; take 400 to 599, slow or {words}")
    if equals:
        raise ConfigError(f"{where}: {word} takes no value; leave out ={_shown(value)}")
    if kind is None:
        return share, Fault("bad-answer", answer=answer)
    return share, Fault(kind, HTTPStatus.INTERNAL_SERVER_ERROR if kind == "dead" else 0)


def _factor(value: str, where: str) -> float:
    factor = _number(value)
    if not 1.0 <= factor <= MAX_FACTOR:
        raise ConfigError(f"{where}: slow={_shown(value)} must be from 1 to {MAX_FACTOR:,.0f}")
    return factor


def _tokens(word: str, value: str, where: str) -> int:
    tokens = _number(value)
    if not (1 <= tokens <= MAX_FAULT_TOKENS and tokens.is_integer()):
        raise ConfigError(
            f"{where}: {word} takes whole tokens from 1 to {MAX_FAULT_TOKENS:,}, e.g. {word}=20"
        )
    return int(tokens)


def _retry_after_s(status: int, value: str, where: str) -> int:
    if status not in _OVERLOAD:
        raise ConfigError(f"{where}: only 429 and 503 say when to try again; leave out the value")
    seconds = _number(value)
    if not (0 <= seconds <= MAX_SECONDS and seconds.is_integer()):
        raise ConfigError(
            f"{where}: retry-after is in whole seconds from 0 to {MAX_SECONDS:,}, e.g. {status}=2"
        )
    return int(seconds)


def _number(text: str) -> float:
    """Return the number, infinity for what is none: no bound allows it."""
    try:
        number = float(text)
    except ValueError:
        return inf
    return number if isfinite(number) else inf


def _shown(text: str) -> str:
    """Return the text, shortened so that a message stays one."""
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
