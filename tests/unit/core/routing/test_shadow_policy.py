import msgspec
import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.cost.catalogue import Formulas
from kvmesh.core.cost.formulas import PREDICTED_TIME
from kvmesh.core.cost.own import FAULTS_OFF
from kvmesh.core.cost.own_function import own_cost
from kvmesh.core.cost.terms import Candidate, Fleet, survey
from kvmesh.core.cost.weights import NO_WEIGHTS
from kvmesh.core.routing.decision import Decision
from kvmesh.core.routing.shadow_policy import (
    ShadowPolicies,
    ShadowReport,
    add_reports,
    parse_shadow,
)
from kvmesh.errors import ConfigError
from tests.reference.decision_log import decided, naive_log

SIZE = 16


def candidate(name: str, overlap: int, *, requests: int = 0, wait_ms: float = 0.0) -> Candidate:
    return Candidate(
        worker=WorkerId(name),
        block_size=SIZE,
        prompt_tokens=100 * SIZE,
        overlap_blocks=overlap,
        request_blocks=100,
        uncached_tokens=(100 - overlap) * SIZE,
        active_requests=requests,
        wait_ms=wait_ms,
        cache_usage=0.1 * requests,
    )


def decision(taken: str, *candidates: Candidate, considered: int = 0) -> Decision:
    chosen = next(one for one in candidates if one.worker == taken)
    return Decision(
        request_id="r",
        worker=chosen.worker,
        overlap_blocks=chosen.overlap_blocks,
        total_blocks=100,
        policy="predicted-time",
        score=0.0,
        considered=considered or len(candidates),
        chosen=chosen,
        candidates=candidates,
        scores=tuple(0.0 for _ in candidates),
        cost=PREDICTED_TIME,
        fleet=survey(candidates, NO_WEIGHTS),
        weights=PREDICTED_TIME.weights.default,
        by_cache=True,
    )


FULL, EMPTY = candidate("full", 80, requests=9, wait_ms=50.0), candidate("empty", 0)


def judged(*policies: str, decisions: tuple[Decision, ...]) -> list[ShadowReport]:
    shadows = ShadowPolicies([parse_shadow(one, SIZE) for one in policies])
    for one in decisions:
        shadows.judge(one)
    return shadows.reports()


def test_a_shadow_tells_what_it_would_have_found_and_met() -> None:
    (report,) = judged("kv:overlap-load", decisions=(decision("full", FULL, EMPTY),))

    assert (report.decisions, report.agreed) == (1, 0)
    assert (report.achieved_blocks, report.would_be_blocks, report.request_blocks) == (80, 0, 100)
    assert (report.achieved_wait_ms, report.would_be_wait_ms) == (50.0, 0.0)
    assert (report.achieved_requests, report.would_be_requests) == (9, 0)


def test_a_formula_of_one_s_own_is_judged_unless_it_fails() -> None:
    def fewest(c: Candidate, f: Fleet) -> float:
        return c.active_requests / (f.max_requests - 1)

    formulas = Formulas([own_cost(fewest, "b.py:fewest")])
    shadows = ShadowPolicies([parse_shadow("kv:b.py:fewest", SIZE, formulas)])

    shadows.judge(decision("full", FULL, EMPTY))
    (report,) = shadows.reports()
    assert (report.decisions, report.agreed, report.would_be_requests) == (1, 0, 0)
    one = candidate("one", 0, requests=1)
    for _ in range(FAULTS_OFF + 3):
        shadows.judge(decision("one", one))
    shadows.judge(decision("full", FULL, EMPTY))
    assert (shadows.reports(), formulas.own()[0].statistics().faults) == ([report], FAULTS_OFF)


def test_the_policy_in_force_agrees_with_itself() -> None:
    (report,) = judged("kv:prefill-decode", decisions=(decision("full", FULL, EMPTY),) * 3)

    assert (report.decisions, report.agreed) == (3, 3)
    assert report.achieved_blocks == report.would_be_blocks


def test_a_decision_that_kept_only_its_choice_is_left_out() -> None:
    (report,) = judged("kv:lmetric", decisions=(decision("full", FULL, considered=2),))

    assert report.decisions == 0


@pytest.mark.parametrize("text", ["round-robin", "kv:nonsense", "kv:lmetric:bogus=1", "oracle"])
def test_what_has_no_cost_is_no_shadow(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_shadow(text, SIZE)


def test_shadows_are_few() -> None:
    with pytest.raises(ConfigError, match="9 shadow policies: at most 8"):
        ShadowPolicies([parse_shadow("kv:lmetric", SIZE)] * 9)


def test_the_log_has_its_shadows_judge_when_it_settles() -> None:
    log = naive_log(shadows=ShadowPolicies([parse_shadow("kv:overlap-load", SIZE)]))
    decided(log, b"r", decision("full", FULL, EMPTY), BlockHashes.of([], SIZE), 1.0)
    assert log.shadows.reports()[0].decisions == 0

    log.settle()

    assert log.shadows.reports()[0].decisions == 1
    assert msgspec.json.encode(log.shadows.reports())


def test_reports_of_several_routers_add_up_by_policy() -> None:
    once = judged("kv:lmetric", "kv:preble", decisions=(decision("full", FULL, EMPTY),))

    lmetric, preble = add_reports([*once, once[0]])

    assert (lmetric.policy, lmetric.decisions, lmetric.achieved_blocks) == ("kv:lmetric", 2, 160)
    assert preble == once[1]


def test_a_shadow_may_come_and_go_while_others_stay() -> None:
    usual, late = parse_shadow("kv:lmetric", 16), parse_shadow("kv:dynamo", 16)
    shadows = ShadowPolicies([usual])

    shadows.put(late)
    shadows.put(late)
    assert [one.policy for one in shadows.reports()] == ["kv:lmetric", "kv:dynamo"]

    shadows.drop("kv:dynamo")
    shadows.drop("kv:dynamo")
    assert [one.policy for one in shadows.reports()] == ["kv:lmetric"]
