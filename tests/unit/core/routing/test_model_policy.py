import pytest

from kvmesh.core.cost.catalogue import Formulas
from kvmesh.core.cost.own_function import own_cost
from kvmesh.core.routing.model_policy import ModelPolicies, ModelPolicy, parse_model_policy
from kvmesh.errors import ConfigError


def test_a_policy_is_read_whole() -> None:
    policy = parse_model_policy(
        "model=llama-*, router-mode=kv, kv-cost=dynamo, router-temperature=0.5,"
        "kv-overlap-score-weight=2,labels=gpu:h100+zone:a,tolerations=batch"
    )

    assert policy == ModelPolicy(
        model="llama-*",
        router_mode="kv",
        kv_cost="dynamo",
        router_temperature=0.5,
        kv_overlap_score_weight=2.0,
        labels=frozenset(["gpu:h100", "zone:a"]),
        tolerations=frozenset(["batch"]),
    )


def test_what_a_policy_does_not_name_stays_as_it_is() -> None:
    assert parse_model_policy("model=a,labels=x") == ModelPolicy("a", labels=frozenset(["x"]))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("model=a,colour=red", "'colour=red' is no key=value"),
        ("model=a,kv-cost", "'kv-cost' is no key=value"),
        ("model=a,labels=x,labels=y", "labels is given twice"),
        ("kv-cost=dynamo", "write model=GLOB and at least one other key"),
        ("model=a", "write model=GLOB and at least one other key"),
        ("model=a,router-mode=clever", "router-mode is 'clever'; use one of kv"),
        ("model=a,kv-cost=cheap", "kv-cost 'cheap' is unknown"),
        ("model=a,router-temperature=hot", "router-temperature is 'hot'; use a number >= 0"),
        ("model=a,router-temperature=inf", "router-temperature is 'inf'"),
        ("model=a,router-temperature=nan", "router-temperature is 'nan'"),
        ("model=a,router-temperature=1e308", "router-temperature is '1e308'"),
        ("model=a,kv-overlap-score-weight=" + "9" * 5000, "kv-overlap-score-weight is '999"),
    ],
)
def test_a_policy_that_cannot_be_is_named(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named.replace("*", r"\*")):
        parse_model_policy(text)


def test_the_first_match_counts_alone() -> None:
    small, rest = ModelPolicy("small-*", router_mode="random"), ModelPolicy("*", kv_cost="dynamo")
    policies = ModelPolicies([small, rest])

    assert policies.find("small-1") is small
    assert policies.find("small-1") is small
    assert policies.find("other") is rest
    assert ModelPolicies([small]).find("other") == ModelPolicy()
    assert ModelPolicies().find("small-1") == ModelPolicy()


def test_models_without_end_are_not_kept() -> None:
    policies = ModelPolicies([ModelPolicy("a*", router_mode="random")])

    assert {policies.find(f"a{number}").router_mode for number in range(600)} == {"random"}


def test_a_formula_of_a_file_is_named_without_its_folder() -> None:
    formulas = Formulas([own_cost(lambda c, f: c.active_requests + f.max_waiting, "b.py:f")])

    known = parse_model_policy("model=a,kv-cost=x/b.py:f", formulas=formulas)
    unchecked = parse_model_policy("model=a,kv-cost=x/b.py:f", formulas=None)

    assert known == unchecked == ModelPolicy("a", kv_cost="b.py:f")
    with pytest.raises(ConfigError, match=r"kv-cost 'b.py:f' is unknown"):
        parse_model_policy("model=a,kv-cost=x/b.py:f")
