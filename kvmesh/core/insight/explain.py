"""A decision as JSON: every weighed worker's overlap, load, cost terms, and the choice."""

from typing import Final

import msgspec
from msgspec.structs import asdict

from kvmesh.bounds import counted
from kvmesh.core.admission.access import Viewer
from kvmesh.core.chat.prompt_form import in_words
from kvmesh.core.cost.arms import ArmName
from kvmesh.core.cost.formulas import Cost
from kvmesh.core.cost.selection import tie_limit
from kvmesh.core.cost.terms import CandidateTerms, Fleet
from kvmesh.core.cost.weights import weights_of
from kvmesh.core.members.left_out import LeftOut
from kvmesh.core.programs.standing import Outlook
from kvmesh.core.routing.decision import Decision, Forecast
from kvmesh.core.routing.output_lengths import OutputForecast

NEW_HOME: Final = 0.5
"""A worker that holds more than this share of what the best one does is a home already
(kvmesh/native/decide/choose.c).
"""

HIDDEN: Final = (
    "what workers hold is not shown: tenants share cached blocks here, so it would reveal others'"
    " prompts; --tenant-secret-file, or a key that may operate, shows it"
)


class CandidateView(CandidateTerms, frozen=True):
    """One worker as it was weighed, with its score; `formula` is the debug log's line.
    `confidence`, 0..1, is the share of the overlap that is expected to be there in the request's
    turn.
    """

    score: float = 0.0
    formula: str = ""
    confidence: float = 1.0


class DecisionView(msgspec.Struct, frozen=True):
    """Where a request goes and why. The smallest score wins unless `maximise`.

    `considered` workers could have taken it, `candidates` are those whose terms are known.
    `left_out` could not, and why: None where that was not kept. `formula` is in words, `fleet` and
    `weights` are what it may refer to besides the candidate. `arm` is that of a policy on trial,
    None while none is. `unforeseen`: why the engine may reuse more or less of the prompt than
    `overlap_blocks`, in words, "" where it does not. `program`: whose turn it would be, None where
    it is part of no program. `forecasts`: of a request with targets, what is to be expected of it
    at each candidate, the least likely to miss them first. `resumable`: what a stream's client may
    count on when its worker is lost, and why no more; "" where it asks for no stream. `media`: how
    many of its images, sounds and videos are followed, and why no more; "" where it has none.
    """

    request_id: str
    router: str
    bucket: str
    worker: str
    policy: str
    maximise: bool
    prompt_tokens: int
    overlap_blocks: int
    total_blocks: int
    considered: int
    why: str
    formula: str
    candidates: list[CandidateView]
    fleet: Fleet
    weights: dict[str, float]
    expected_output: OutputForecast | None = None
    left_out: LeftOut | None = None
    arm: ArmName | None = None
    unforeseen: str = ""
    program: Outlook | None = None
    forecasts: tuple[Forecast, ...] = ()
    resumable: str = ""
    media: str = ""


class TenantChoice(msgspec.Struct, frozen=True):
    """What a tenant may know of a choice where it shares cached blocks with others."""

    request_id: str
    router: str
    bucket: str
    worker: str
    policy: str
    prompt_tokens: int
    total_blocks: int
    considered: int
    why: str = HIDDEN
    candidates: tuple[()] = ()


def view_decision(
    decision: Decision,
    *,
    router: str,
    bucket: str,
    forecast: OutputForecast | None = None,
    left_out: LeftOut | None = None,
) -> DecisionView:
    """Return `decision` for people and programs, best candidate first."""
    rows = [
        CandidateView(
            **asdict(one),
            score=score,
            formula=decision.formula_line(one.worker),
            confidence=one.confidence,
        )
        for one, score in zip(decision.candidates, decision.scores, strict=True)
    ]
    maximise = decision.cost.maximise
    rows.sort(key=lambda row: (-row.score if maximise else row.score, row.worker))
    return DecisionView(
        request_id=decision.request_id,
        router=router,
        bucket=bucket,
        worker=decision.worker,
        policy=decision.policy,
        maximise=maximise,
        prompt_tokens=decision.chosen.prompt_tokens,
        overlap_blocks=decision.overlap_blocks,
        total_blocks=decision.total_blocks,
        considered=decision.considered,
        why=why(decision),
        formula=formula_in_words(decision.cost),
        candidates=rows,
        fleet=decision.fleet,
        weights=weights_of(decision.weights),
        expected_output=forecast,
        left_out=left_out,
        arm=decision.arm.name if decision.arm is not None else None,
        unforeseen=in_words(decision.unforeseen),
        forecasts=tuple(sorted(decision.forecasts, key=lambda one: (one.chance, one.worker))),
    )


def why(decision: Decision) -> str:
    """Return in a few words why this worker."""
    if decision.instead_of:
        return f"{decision.instead_of}; {decision.policy} decided: {_why(decision)}"
    return _why(decision)


def _why(decision: Decision) -> str:
    forecast = decision.forecast
    if forecast is None:
        return _why_there(decision)
    kept = 1.0 - forecast.chance
    return f"{_why_there(decision)}; meets its targets with a chance of {kept:.0%}"


def _why_there(decision: Decision) -> str:
    brought = decision.brought
    if brought is not None and brought.source is not None:
        tokens = counted(brought.fetched_tokens, "token")
        return f"{_chosen(decision)}; fetches {tokens} from {brought.source}"
    return _chosen(decision)


def _chosen(decision: Decision) -> str:
    if decision.kept:
        return f"its session stays there; holds {decision.overlap_blocks} of its blocks"
    if not decision.by_cache:
        return f"{decision.policy}: caches did not count"
    return _as_second_home(decision) or _as_cheapest(decision)


def _as_cheapest(decision: Decision) -> str:
    best = max(decision.candidates, key=lambda one: one.overlap_blocks)
    held, total = decision.overlap_blocks, decision.total_blocks
    fleet = f"of {counted(decision.considered, 'worker')}"
    if best.overlap_blocks > held:
        more = f"{best.overlap_blocks} against {counted(held, 'block')}"
        return f"costs least {fleet}; {best.worker} holds more ({more})"
    if held:
        return f"holds {held} of {counted(total, 'block')}, costs least {fleet}"
    if len(decision.candidates) == decision.considered:
        return f"no worker holds any of it; costs least {fleet}"
    return f"holds none of it, but costs least {fleet}"


def _as_second_home(decision: Decision) -> str:
    """Return that an idle worker took the request although, as far as is known, it costs more there
    (kvmesh/native/decide/choose.c); "" where it did not.
    """
    cost, chosen, weighed = decision.cost, decision.chosen, decision.candidates
    most = max(decision.best_overlap_blocks, *(one.overlap_blocks for one in weighed))
    held = NEW_HOME * most >= chosen.overlap_blocks
    if not (cost.margin and most and held) or chosen.active_requests:
        return ""
    spread = f"was at rest, and becomes one more home of {counted(most, 'block')} that many ask for"
    if len(weighed) < decision.considered:
        return f"costs least of {counted(decision.considered, 'worker')}, or {spread}"
    return spread if decision.score > tie_limit(min(decision.scores), cost.margin) else ""


def formula_in_words(cost: Cost) -> str:
    """Return the formula with names in place of numbers."""
    return f"{cost.name} = {cost.formula.text}"


def choice_for(view: DecisionView, viewer: Viewer | None) -> DecisionView | TenantChoice:
    """Return a decision as its asker may see it."""
    if viewer is None or viewer.apart:
        return view
    return TenantChoice(
        request_id=view.request_id,
        router=view.router,
        bucket=view.bucket,
        worker=view.worker,
        policy=view.policy,
        prompt_tokens=view.prompt_tokens,
        total_blocks=view.total_blocks,
        considered=view.considered,
    )
