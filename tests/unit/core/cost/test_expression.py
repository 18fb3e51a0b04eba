import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.expression import Expression
from kvmesh.core.cost.terms import DERIVED, NO_FLEET, Candidate
from kvmesh.core.cost.weight_sets import PredictedTimeWeights
from kvmesh.errors import ConfigError

CANDIDATE = Candidate(
    WorkerId("w"), 16, 1600, uncached_tokens=800, wait_ms=12.0, ms_per_token=0.5, step_tokens=20.0
)


def value(text: str) -> float:
    return Expression(text, weights=PredictedTimeWeights).function(
        CANDIDATE, NO_FLEET, PredictedTimeWeights()
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("wait_ms", 12.0),
        ("2 * (wait_ms + 1) - 4 / 8", 25.5),
        ("wait_ms - 1 - 1", 10.0),
        ("wait_ms / 4 / 3", 1.0),
        ("-wait_ms + 13", 1.0),
        ("max(1, wait_ms) * min(2, contention)", 12.0 * 0.4),
        ("own_ms", 410.0),
        ("own_ms * own_ms", 410.0**2),
        ("prefill_blocks", 50.0),
        ("overlap_score", 0.5),
        ("max_waiting", 0.0),
    ],
)
def test_a_formula_is_what_python_computes(text: str, expected: float) -> None:
    assert value(text) == expected


def test_what_is_read_is_known() -> None:
    formula = Expression("own_ms * contention + max(1, max_waiting)", weights=PredictedTimeWeights)

    assert formula.names("c") == ("ms_per_token", "step_tokens", "uncached_tokens")
    assert (formula.names("f"), formula.names("w")) == (("max_waiting",), ("contention",))


def test_a_line_has_numbers_in_place_of_names() -> None:
    formula = Expression(
        "max(wait_ms, own_ms) + contention * uncached_tokens + -1 + 1e3",
        weights=PredictedTimeWeights,
    )

    line = formula.line(CANDIDATE, NO_FLEET, PredictedTimeWeights())

    assert line == "max(12.0, 410.0) + 0.4 * 800 + -1 + 1e3"


@pytest.mark.parametrize("name", sorted(DERIVED))
def test_derived_terms_are_expressions_of_fields(name: str) -> None:
    assert set(Expression(DERIVED[name]).names("c")) <= set(Candidate.__struct_fields__)


@pytest.mark.parametrize(
    "text",
    [
        "", "wait_ms +", "luck", "worker", "wait_ms ** 2", "wait_ms // 2", "max(1, 2, 3)", "max(1)",
        "max(wait_ms, key=1)", "abs(wait_ms)", "wait_ms.real", "'wait_ms'", "True", "1j",
        "wait_ms if wait_ms else 1", "(wait_ms, 1)", "+wait_ms", "__import__('os')",
        "wait_ms < 2", "\0",
    ],
)  # fmt: skip
def test_what_is_no_arithmetic_of_terms_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ConfigError, match="cost formula "):
        Expression(text)


def test_a_refusal_names_what_is_wrong_and_what_is_known() -> None:
    with pytest.raises(ConfigError, match=r"'luck' is none of its terms.*own_ms.*wait_ms"):
        Expression("2 * luck + wait_ms")
