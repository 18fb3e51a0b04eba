"""What a tuner sees at each look, what it has done, and what it asks of whoever runs it."""

from typing import Literal

import msgspec

from kvmesh.core.insight.load_character import Character
from kvmesh.core.insight.weight_search import Found, Weighting
from kvmesh.core.routing.shadow_policy import ShadowReport

Stage = Literal["following", "blocked", "observing", "searching", "shadowing"]
"""following: another replica tunes. blocked: this fleet or policy cannot be tuned now."""

StepKind = Literal[
    "waits", "searches", "found", "nothing-better", "shadows", "proposes", "dropped", "drifted",
]  # fmt: skip


class Seen(msgspec.Struct, frozen=True):
    """What is there at one look. `obstacle` in words, "" where nothing is in the way.

    `rows` began since the tuner's `since_s`, `character` is of the newest of those, None while they
    are too few. `shadow` is what the candidate would have done, `block_ms` how long a block takes
    to prefill.
    """

    leads: bool
    obstacle: str
    rows: int
    character: Character | None
    shadow: ShadowReport | None = None
    block_ms: float = 0.0


class StartSearch(msgspec.Struct, frozen=True):
    """Search on the rows since `since_s`, beginning with the present weights."""

    since_s: float


class StartShadow(msgspec.Struct, frozen=True):
    """Have live requests weighed by these weights, too."""

    weights: Weighting


class StopShadow(msgspec.Struct, frozen=True):
    """Do so no more."""


class GiveUp(msgspec.Struct, frozen=True):
    """End the search that is under way."""


Act = StartSearch | StartShadow | StopShadow | GiveUp


class Step(msgspec.Struct, frozen=True):
    """One thing that was done, at the caller's `at_s`, in words."""

    number: int
    at_s: float
    kind: StepKind
    text: str


class TunerStatus(msgspec.Struct, frozen=True):
    """Everything about a tuner, for people."""

    stage: Stage
    words: str
    cost: str
    character: Character | None
    candidate: Weighting | None
    proposal: str
    found: Found | None
    steps: tuple[Step, ...]
