"""What a tuner sees at each look, what it has done, and what it asks of whoever runs it."""

from typing import Literal

import msgspec

from kvmesh.core.insight.load_character import Character
from kvmesh.core.insight.performance import Performance
from kvmesh.core.insight.weight_search import Found, Weighting
from kvmesh.core.routing.shadow_policy import ShadowReport

Stage = Literal["following", "blocked", "observing", "searching", "shadowing", "trying"]
"""following: another replica tunes. blocked: this fleet or policy cannot be tuned now."""

StepKind = Literal[
    "waits", "observes", "searches", "found", "nothing-better", "shadows", "proposes", "tries",
    "kept", "returned", "dropped", "drifted",
]  # fmt: skip


class TrialSeen(msgspec.Struct, frozen=True):
    """Where a trial stands: the candidate has `share` of the requests. `returned`: it was found to
    be worse, or somebody ended it, for that `reason`.

    `before` is of the requests before the trial, `after` of those since the candidate has all.
    """

    phase: Literal["running", "done", "returned"]
    share: float
    reason: str
    before: Performance
    after: Performance


class Seen(msgspec.Struct, frozen=True):
    """What is there at one look. `obstacle` in words, "" where nothing is in the way.

    `rows` began since the tuner's `since_s`, `character` is of the newest of those, None while they
    are too few. `present` are the weights in force, `shadow` what the candidate would have done.
    `block_ms` is how long a block takes to prefill. `trial` is of the one under way.
    """

    leads: bool
    obstacle: str
    rows: int
    character: Character | None
    present: Weighting
    shadow: ShadowReport | None = None
    block_ms: float = 0.0
    trial: TrialSeen | None = None


class StartSearch(msgspec.Struct, frozen=True):
    """Search on the rows since `since_s`, beginning with the present weights and `others`."""

    since_s: float
    others: tuple[Weighting, ...]


class StartShadow(msgspec.Struct, frozen=True):
    """Have live requests weighed by these weights, too."""

    weights: Weighting


class StopShadow(msgspec.Struct, frozen=True):
    """Do so no more."""


class StartTrial(msgspec.Struct, frozen=True):
    """Give these weights a share of the requests, in stages."""

    weights: Weighting
    why: str


class PutBack(msgspec.Struct, frozen=True):
    """Go by these weights from now on, at once."""

    why: str
    weights: Weighting


class GiveUp(msgspec.Struct, frozen=True):
    """End the search or the trial that is under way."""

    why: str


Act = StartSearch | StartShadow | StopShadow | StartTrial | PutBack | GiveUp


class Step(msgspec.Struct, frozen=True):
    """One thing that was done, at the caller's `at_s`, in words."""

    number: int
    at_s: float
    kind: StepKind
    text: str


class TunerStatus(msgspec.Struct, frozen=True):
    """Everything about a tuner, for people. `tuned_for` is the load that `own` weights are for."""

    mode: Literal["propose", "apply"]
    stage: Stage
    words: str
    cost: str
    character: Character | None
    tuned_for: Character | None
    own: Weighting | None
    candidate: Weighting | None
    proposal: str
    found: Found | None
    steps: tuple[Step, ...]
