import pytest

from kvmesh.core.cost.catalogue import Formulas
from kvmesh.core.cost.own_function import own_cost
from kvmesh.core.routing.policy import parse_policy
from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.simulator.fleet.options import FleetOptions


def test_a_policy_is_a_mode_a_cost_and_numbers() -> None:
    options = parse_policy("kv:dynamo:overlap_score_weight=8:overlap_score_credit=0.1", 64)

    assert (options.mode, options.cost, options.block_size) == ("kv", "dynamo", 64)
    assert options.weights == {"overlap_score_weight": 8, "overlap_score_credit": 0.1}


def test_the_oracle_names_each_worker_itself() -> None:
    assert parse_policy("oracle", 16).mode == "direct"


def test_kv_alone_is_the_routers_own_default() -> None:
    assert parse_policy("kv", 16) == parse_policy("kv:predicted-time", 16)
    assert parse_policy("kv:temperature=0.2", 16).temperature == 0.2


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("kvv", "none of kv, round-robin"),
        ("direct", "none of kv"),
        ("random:lmetric", "only kv"),
        ("kv:lmetrics", "lmetrics"),
        ("kv:lmetric:x=1", "'x' is none of temperature"),
        ("kv:lmetric:temperature=warm", "not name=number"),
        ("kv:lmetric:temperature", "not name=number"),
        ("kv:lmetric:temperature=-1", "0 or more"),
        ("kv:lmetric:contention=1", "'contention' is none of .* lmetric, which has no weights"),
        ("kv:preble:contention=1", r"preble, which has outstanding_weight \(0 to 1e\+06, default"),
        ("kv:predicted-time:contention=-1", "contention is -1: use a number from 0 to"),
        ("kv:predicted-time:contention=nan", "is not name=number"),
        ("kv:sglang:balance_abs_threshold=1.5", "is 1.5: use a whole number"),
    ],
)
def test_a_wrong_policy_is_refused_with_what_exists(policy: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_policy(policy, 16)


def test_fleets_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="engines is 0"):
        FleetOptions(engines=0)
    with pytest.raises(ConfigError, match="event_delay_s is -1"):
        FleetOptions(event_delay_s=-1)
    with pytest.raises(ConfigError, match="speed_ratios"):
        FleetOptions(speed_ratios=())
    with pytest.raises(ConfigError, match="retries is -1"):
        FleetOptions(retries=-1)
    with pytest.raises(ConfigError, match="client_timeout_s is 0"):
        FleetOptions(client_timeout_s=0)
    with pytest.raises(ConfigError, match="kinds has 1 of 2 engines"):
        FleetOptions(engines=2, kinds=(EngineOptions(),))
    with pytest.raises(ConfigError, match="kinds has engines of other block sizes"):
        FleetOptions(engines=1, kinds=(EngineOptions(block_size=64),))


def test_a_policy_may_name_a_formula_of_a_file_that_was_loaded() -> None:
    formulas = Formulas([own_cost(lambda c, f: c.active_requests + f.max_waiting, "b.py:f")])

    options = parse_policy("kv:x/b.py:f:temperature=0.5", 16, formulas)

    assert (options.cost, options.temperature, options.formulas) == ("b.py:f", 0.5, formulas)
    with pytest.raises(ConfigError, match=r"'b.py:f' is unknown"):
        parse_policy("kv:x/b.py:f", 16)
