"""A picker that is right passes, whoever made it; one with a fault fails in the right cases."""

import asyncio

import pytest
import pytest_asyncio

from kvmesh_lab.conformance.options import ConformanceOptions
from tests.integration.conformance.reference import Fault, ReferencePicker, serving
from tests.integration.conformance.running import broken, endpoints, results_of, try_reference

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

BESIDES = (
    "health-processor",
    "pick-told-twice",
    "pick-order",
    "body-0",
    "body-62k",
    "body-64k-and-1",
    "body-end-twice",
    "body-trailers",
    "refusal-form",
    "subset-one",
    "subset-strangers",
    "subset-header",
    "spoofed-stranger",
    "answer-streams",
    "answer-bytes",
    "answer-awaited",
    "answer-then-end",
    "stall-in-body",
)
"""A case of each rule, run with every fault: those that do not meet it must pass."""

AT_ONCE = 8
SKIPPED = {"refusal-form", "crowd-retry-after"}
"""The reference picker refuses nobody."""

BODIES = {"body-62k", "body-64k-and-1", "body-end-twice", "body-trailers"}
ANSWERS = {"answer-streams", "answer-bytes", "answer-awaited", "answer-then-end"}

FAULTS: dict[Fault, set[str]] = {
    "closes-early": ANSWERS,
    "obeys-client": {"spoofed-stranger"},
    "appends": {"spoofed-stranger"},
    "ends-twice": {"body-end-twice"},
    "one-at-a-time": {"stall-in-body"},
    "truncates": {"body-64k-and-1", "body-end-twice"},
    "gives-up-large": {"body-64k-and-1", "body-end-twice"},
    "ignores-subset": {"subset-one", "subset-strangers"},
    "falls-back": {"subset-strangers"},
    "header-subset": {"subset-header"},
    "holds-answer": {"answer-streams"},
    "decodes-text": {"answer-bytes"},
    "no-metadata": {"pick-told-twice"},
    "forgets-trailers": {"body-trailers"},
    "unstreamed": {"pick-order", "stall-in-body", *BODIES, *ANSWERS},
    "never-ends": {"answer-then-end"},
    "unhealthy": {"health-processor"},
    "bad-json-ends-call": {"body-0", "refusal-form"},
    "unbounded": {"stall-bounded"},
}


async def test_a_picker_that_is_right_passes_over_grpc() -> None:
    results = await try_reference(skip=("envoy", "death"))

    assert broken(results) == {}
    assert {name for name, one in results.items() if one.verdict == "skip"} == SKIPPED
    assert len(results) > 50


Found = dict[Fault, dict[str, str]]

RACED: dict[Fault, set[str]] = {"closes-early": {"body-end-twice"}}
"""What else may show: a picker that ends its call after the pick may do so before the body's second
end is written, on a busy machine.
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def found() -> Found:
    """Return what the suite finds in a picker with each fault: several at a time, as most wait."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(fault: Fault) -> tuple[Fault, dict[str, str]]:
        async with gate:
            only = (*BESIDES, *FAULTS[fault])
            return fault, broken(await try_reference(fault, only=only, patience_s=3.0))

    return dict(await asyncio.gather(*map(one, FAULTS)))


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_is_found_by_the_cases_that_it_breaks(fault: Fault, found: Found) -> None:
    assert set(found[fault]) - RACED.get(fault, set()) == FAULTS[fault], found[fault]


async def test_lost_pieces_show_through_envoy() -> None:
    """The picker ends its call after the pick: Envoy answers 200 and loses what comes then, where
    it knows of the end before that comes.
    """
    for _ in range(5):
        results = await try_reference(
            "closes-early", only=("envoy-obeyed", "envoy-streams", "envoy-errors", "envoy-slow")
        )
        assert "envoy-obeyed" in results
        if broken(results):
            return

    raise AssertionError("nothing was lost in five trials")


async def test_a_spoofed_destination_shows_through_envoy() -> None:
    results = await try_reference("appends", only=("envoy-obeyed", "envoy-not-fooled"))

    assert set(broken(results)) == {"envoy-not-fooled"}


async def test_the_pool_need_not_be_told() -> None:
    pool = endpoints(2)
    async with serving(ReferencePicker(pool)) as target:
        results = await results_of(
            ConformanceOptions(target=target, only=("pick-of", "subset", "envoy-obeyed"))
        )

    assert results["subset-one"].remark == "2 endpoints"
    assert results["pick-of-the-pool"].verdict == "skip"
    assert "--endpoints" in results["subset-some"].remark
    assert "--endpoints" in results["envoy-obeyed"].remark
