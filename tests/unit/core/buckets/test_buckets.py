from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from kvmesh.core.buckets.beginnings import chat_keys, prompt_family
from kvmesh.core.buckets.buckets import MODELS_REMEMBERED, BucketTable
from kvmesh.core.buckets.placing import BucketPolicy, RouterReplica, rendezvous
from kvmesh.core.buckets.rules import BucketRequest, parse_rule
from kvmesh.core.buckets.spill import BucketHeat, BucketLoad, lightest
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import failed_attempt
from kvmesh.errors import ConfigError, NoWorkerError, RequestError

ANY = BucketRequest()
CUT = failed_attempt("cut")


def make_table(
    *replicas: str,
    rules: tuple[str, ...] = (),
    policy: BucketPolicy = "round-robin",
    models: Mapping[str, tuple[str, ...]] | None = None,
) -> BucketTable:
    """Make a table of replicas written `bucket/name`."""
    table = BucketTable(Membership(), [parse_rule(rule) for rule in rules], policy)
    for replica in replicas:
        bucket, _, name = replica.partition("/")
        table.membership.add(name, 0.0)
        serves = (models or {}).get(bucket, ())
        table.set_replica(RouterReplica(name, bucket, f"http://{name}", serves))
    return table


def test_a_named_worker_gets_the_request_into_its_bucket_whatever_rules_say() -> None:
    table = make_table("chat/a1", "chat/a2", "code/b1", rules=("bucket=chat,model=*",))
    for name, bucket in (("a1", "chat"), ("a2", "chat"), ("b1", "code")):
        workers = frozenset({f"{bucket}-0", f"{bucket}-1", "everywhere"})
        table.set_replica(RouterReplica(name, bucket, f"http://{name}", workers=workers))

    def routed(*workers: str, bucket: str = "") -> tuple[str, str]:
        request = BucketRequest(bucket=bucket, model="m", workers=frozenset(workers))
        route = table.route(request, 0.0)
        return route.bucket, route.why

    assert [routed("code-1") for _ in range(3)] == [("code", "named")] * 3
    assert routed("unknown", "code-0") == ("code", "named")
    assert routed("everywhere") == ("chat", "named")
    assert routed("code-1", bucket="chat") == ("chat", "named")
    assert routed("unknown") == ("chat", "rule")
    table.membership.remove("a1")
    table.membership.remove("a2")
    assert routed("everywhere") == ("code", "named")
    table.membership.remove("b1")
    with pytest.raises(NoWorkerError, match="bucket 'code' has no usable replica"):
        routed("code-0")


def test_a_hot_bucket_spills_to_another() -> None:
    table = make_table("chat/a1", "code/b1", policy="prefix-spill")
    prompt = BucketRequest(prompt_chars=4000, prompt_start="You are helpful")
    home = table.route(prompt, 0.0)
    assert home.why == "prefix-spill"

    hot = msgspec.structs.replace(home.replica, heat=BucketHeat(5000.0, 0.1))
    table.set_replica(hot)

    assert table.route(prompt, 0.0).bucket != home.bucket


def test_a_family_of_prompts_may_have_its_rule() -> None:
    family = prompt_family("You are helpful" * 100)
    table = make_table("chat/a1", "code/b1", rules=(f"bucket=code,family={family.upper()}",))
    mine = BucketRequest(prompt_start="You are helpful" * 100)

    assert (table.route(mine, 0.0).why, table.named(mine)) == ("rule", "code")
    assert table.named(BucketRequest(prompt_start="other")) == ""
    assert table.named(BucketRequest(bucket="chat", prompt_start="You are helpful")) == "chat"
    with pytest.raises(ConfigError, match="family is 'abc'; give the 16 hex digits"):
        parse_rule("bucket=code,family=abc")


def test_an_unknown_bucket_is_the_clients_mistake() -> None:
    with pytest.raises(
        RequestError, match="bucket 'cde' is unknown; known are chat, code"
    ) as caught:
        make_table("chat/a1", "code/b1").route(BucketRequest(bucket="cde"), 0.0)
    assert (caught.value.status, caught.value.param) == (404, "bucket")


def test_before_any_replica_was_heard_of_no_bucket_is_called_unknown() -> None:
    table = make_table()

    assert not table.met_any
    with pytest.raises(NoWorkerError, match="no replica of bucket 'chat' was heard of yet"):
        table.route(BucketRequest(bucket="chat"), 0.0)

    table.set_replica(RouterReplica("b1", "code", "http://b1"))
    table.remove_replica("b1")
    with pytest.raises(RequestError, match="known are none"):
        table.route(BucketRequest(bucket="chat"), 0.0)


def test_a_bucket_is_not_rejected_while_one_of_its_replicas_may_be_well() -> None:
    table = make_table("chat/a1", "chat/a2", "code/b1")
    table.membership.note("a1", CUT, 0.0)
    named = BucketRequest(bucket="chat")

    assert [table.route(named, 0.0).replica.name for _ in range(3)] == ["a2"] * 3
    assert table.route(named, 0.0, tried=["a2"]).replica.name == "a1"
    with pytest.raises(
        NoWorkerError, match=r"1 of 2: ejected, 1 of 1 failed \(cut\).*; 1 of 2: tried"
    ):
        table.route(named, 0.0, tried=["a1", "a2"])


def test_a_failed_replica_is_left_out_and_the_retry_goes_to_another() -> None:
    table = make_table("chat/a1", "chat/a2")
    first = table.route(ANY, 0.0).replica.name
    table.membership.note(first, CUT, 0.0)

    names = {table.route(ANY, 0.1, tried=[first]).replica.name for _ in range(4)}

    assert names == {"a1", "a2"} - {first}
    assert [one.name for one in table.ready("chat", 0.1)] == sorted(names)


@pytest.mark.parametrize(
    ("rule", "request_"),
    [
        ("bucket=code,model=*coder*", BucketRequest(model="qwen-coder-7b")),
        ("bucket=code,header=X-Team", BucketRequest(headers={"x-team": "any"})),
        ("bucket=code,header=x-team:se*", BucketRequest(headers={"x-team": "search"})),
        ("bucket=code,min-chars=100", BucketRequest(prompt_chars=100)),
        ("bucket=code, max-chars=100", BucketRequest(prompt_chars=100)),
        ("bucket=code,prefix=def ", BucketRequest(prompt_start="def f(): ...")),
    ],
)
def test_a_matching_rule_names_the_bucket(rule: str, request_: BucketRequest) -> None:
    table = make_table("chat/a1", "code/b1", rules=(rule,))

    routes = [table.route(request_, 0.0) for _ in range(2)]

    assert [(route.bucket, route.why) for route in routes] == [("code", "rule")] * 2


@pytest.mark.parametrize(
    ("rule", "request_"),
    [
        ("bucket=code,model=*coder*", BucketRequest(model="llama")),
        ("bucket=code,header=x-team", BucketRequest()),
        ("bucket=code,header=x-team:se*", BucketRequest(headers={"x-team": "ads"})),
        ("bucket=code,min-chars=100", BucketRequest(prompt_chars=99)),
        ("bucket=code,max-chars=100", BucketRequest(prompt_chars=101)),
        ("bucket=code,prefix=def ", BucketRequest(prompt_start="class A")),
        ("bucket=code,min-chars=9,model=m", BucketRequest(model="m", prompt_chars=8)),
    ],
)
def test_a_rule_that_does_not_match_is_passed_over(rule: str, request_: BucketRequest) -> None:
    assert make_table("chat/a1", "code/b1", rules=(rule,)).route(request_, 0.0).why == "round-robin"


def test_only_so_many_lost_buckets_are_remembered() -> None:
    table = make_table(*(f"b{number}/{number}" for number in range(MODELS_REMEMBERED + 1)))
    for number in range(2):
        table.remove_replica(str(number))

    with pytest.raises(RequestError, match="bucket 'b0' is unknown"):
        table.route(BucketRequest(bucket="b0"), 0.0)
    with pytest.raises(NoWorkerError, match="bucket 'b1' has lost"):
        table.route(BucketRequest(bucket="b1"), 0.0)


def test_the_first_matching_rule_wins() -> None:
    rules = ("bucket=chat,min-chars=9", "bucket=code,min-chars=1")
    table = make_table("chat/a1", "code/b1", rules=rules)

    assert table.route(BucketRequest(prompt_chars=10), 0.0).bucket == "chat"
    assert table.route(BucketRequest(prompt_chars=5), 0.0).bucket == "code"


def test_a_rule_for_a_bucket_nobody_serves_says_so() -> None:
    table = make_table("chat/a1", rules=("bucket=code,min-chars=0",))

    with pytest.raises(RequestError, match="rule: bucket 'code' is unknown"):
        table.route(ANY, 0.0)


def test_only_buckets_that_serve_the_model_take_turns() -> None:
    table = make_table("chat/a1", "code/b1", models={"chat": ("llama",), "code": ("coder",)})

    assert {table.route(BucketRequest(model="coder"), 0.0).bucket for _ in range(3)} == {"code"}
    assert {table.route(ANY, 0.0).bucket for _ in range(2)} == {"chat", "code"}
    assert table.models() == ("coder", "llama")
    with pytest.raises(RequestError, match="model 'gpt' does not exist; served are coder"):
        table.route(BucketRequest(model="gpt"), 0.0)


def test_models_remembered_do_not_fill_the_memory() -> None:
    table = make_table("chat/a1")
    for number in range(2 * MODELS_REMEMBERED):
        table.set_replica(RouterReplica("a1", "chat", "http://a1", models=(f"m{number}",)))

    with pytest.raises(RequestError, match="'m0' does not exist") as caught:
        table.route(BucketRequest(model="m0"), 0.0)

    assert (caught.value.status, caught.value.code) == (404, "model_not_found")


def test_rendezvous_moves_only_what_must_move() -> None:
    keys = [str(number).encode() for number in range(300)]
    before = {key: rendezvous(["a", "b", "c"], key) for key in keys}

    after = {key: rendezvous(["a", "b"], key) for key in keys}

    assert all(after[key] == before[key] for key in keys if before[key] != "c")
    assert set(before.values()) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bucket=a,modle=x", "'modle=x' is no key=value of bucket, model, header"),
        ("bucket=a,model", "'model' is no key=value"),
        ("model=x", "names no bucket; begin with bucket=NAME"),
        ("bucket=,model=x", "names no bucket"),
        ("bucket=a", "matches everything; add a condition"),
        ("bucket=a,model=x,model=y", "model is given twice"),
        ("bucket=a,header=:x", "header needs a name"),
        ("bucket=a,min-chars=ten", "min-chars is 'ten'; give a whole number"),
        ("bucket=a,max-chars=-1", "max-chars is '-1'"),
        ("bucket=a,max-chars=\u0661", "max-chars is"),
        ("bucket=a,min-chars=9,max-chars=8", "max-chars 8 is below min-chars"),
    ],
)
def test_a_bad_rule_names_value_place_and_remedy(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_rule(text, place="KVMESH_RULE")

    assert str(caught.value).startswith(f"KVMESH_RULE {text!r}: ")
    assert message in str(caught.value)


def chat(text: str, *answers: str, **fields: Any) -> BucketRequest:
    """Return a request of a chat, after so many answers."""
    messages = [("user", text)]
    for answer in answers:
        messages += [("assistant", answer), ("user", "and?")]
    return BucketRequest(keys=chat_keys(0, messages), **fields)


def test_named_requests_and_rules_tell_where_a_conversation_is() -> None:
    table = make_table("chat/a1", "code/b1", rules=("bucket=code,model=coder",))

    table.route(chat("by rule", model="coder", sessions=(1,)), 0.0)
    table.route(BucketRequest(bucket="code", sessions=(2,)), 0.0)
    routes = [
        table.route(chat("by rule", "yes"), 0.0),
        table.route(BucketRequest(sessions=(1,)), 0.0),
        table.route(BucketRequest(sessions=(2,)), 0.0),
        table.route(BucketRequest(bucket="chat", sessions=(2,)), 0.0),
        table.route(BucketRequest(sessions=(2,)), 0.0),
    ]

    assert [(one.bucket, one.why) for one in routes] == [
        ("code", "conversation"),
        ("code", "session"),
        ("code", "session"),
        ("chat", "named"),
        ("chat", "session"),
    ]
    assert table.reasons == {"named": 2, "rule": 1, "conversation": 1, "session": 3}


def test_a_conversation_leaves_a_bucket_that_does_not_serve_its_model() -> None:
    models = {"chat": ("llama",), "code": ("coder", "llama")}
    table = make_table("chat/a1", "code/b1", models=models)
    assert table.route(chat("x", model="llama"), 0.0).bucket == "chat"

    assert table.route(chat("x", "yes", model="coder"), 0.0).bucket == "code"


def test_a_retry_and_a_question_are_not_counted() -> None:
    table = make_table("chat/a1", "chat/a2")
    table.route(BucketRequest(bucket="chat"), 0.0, tried=["a1"])
    table.route(BucketRequest(asks=True), 0.0)

    assert table.reasons == {}


def test_buckets_that_left_are_not_counted_any_more() -> None:
    table = make_table("chat/a1", "code/b1")
    table.route(ANY, 0.0)

    table.remove_replica("b1")

    assert (table.buckets(), table.route(ANY, 0.0).bucket) == (("chat",), "chat")


@pytest.mark.parametrize("bound", [BucketRequest(bucket="chat"), BucketRequest(model="chat-m")])
def test_what_is_bound_to_its_bucket_goes_to_no_other(bound: BucketRequest) -> None:
    table = make_table("chat/a1", "code/b1", rules=("bucket=chat,model=chat-*",))
    first = table.route(bound, 0.0)

    with pytest.raises(NoWorkerError, match="bucket 'chat' has no usable replica"):
        table.route(bound, 0.0, tried=["a1"], last=first)


def test_a_replica_without_workers_is_left_out_for_its_model_alone() -> None:
    table = make_table("chat/a1", "code/b1")
    small, large = BucketRequest(model="small"), BucketRequest(bucket="chat", model="large")
    table.workerless.refused("a1", "large", 0.0)

    assert {table.route(BucketRequest(model="large"), 0.0).bucket for _ in range(3)} == {"code"}
    assert {table.route(small, 0.0).bucket for _ in range(2)} == {"chat", "code"}
    with pytest.raises(NoWorkerError, match="1 of 1: no worker there can take it"):
        table.route(large, 0.0)
    assert table.route(large, 1.0).replica.name == "a1"
    with pytest.raises(NoWorkerError):
        table.route(large, 1.0)
    assert [table.route(large, 1.25).replica.name for _ in range(2)] == ["a1", "a1"]


def test_any_number_of_models_may_be_asked_for() -> None:
    table = make_table("chat/a1", "code/b1", models={"chat": ("m",)})

    found = [
        table.route(BucketRequest(model=f"m{number}"), 0.0).bucket
        for number in range(2 * MODELS_REMEMBERED + 2)
    ]

    assert set(found) == {"code"}, "it names no models, so it may have any"


def test_a_request_stays_in_its_bucket_while_that_has_usable_replicas() -> None:
    table = make_table("chat/a1", "chat/a2", "code/b1")

    first = table.route(ANY, 0.0)
    second = table.route(ANY, 0.0, tried=[first.replica.name], last=first)
    third = table.route(ANY, 0.0, tried=["a1", "a2"], last=second)

    assert [one.replica.name for one in (first, second, third)] == ["a1", "a2", "b1"]
    with pytest.raises(NoWorkerError, match="bucket 'code' has no usable replica: 1 of 1: tried"):
        table.route(ANY, 0.0, tried=["a1", "a2", "b1"], last=third)


def test_the_least_loaded_bucket_gets_the_request() -> None:
    table = make_table("chat/a1", "code/b1", "code/b2", policy="least-loaded")
    table.set_replica(RouterReplica("a1", "chat", "http://a1", (), active_requests=4))
    table.set_replica(RouterReplica("b1", "code", "http://b1", (), active_requests=1))
    table.set_replica(RouterReplica("b2", "code", "http://b2", (), active_requests=1))

    buckets = [table.route(ANY, 0.0).bucket for _ in range(5)]

    assert buckets == ["code", "code", "chat", "code", "chat"]


def test_who_takes_a_model_and_how_busy_that_is_says_each_bucket() -> None:
    table = make_table("chat/a1", "code/b1", models={"chat": ("m", "n"), "code": ()})
    heat = BucketHeat(70.0, 0.5, 3)
    table.set_replica(RouterReplica("a2", "chat", "http://a2", ("o",), heat=heat))
    table.membership.add("a2", 0.0)

    loads = table.loads(0.0)

    assert loads == (BucketLoad(("m", "n", "o"), heat), BucketLoad((), BucketHeat()))
    assert table.loads(0.0) is loads
    table.membership.remove("b1")
    assert table.loads(0.0) == loads[:1]
    asks = BucketRequest(model="o")
    assert table.takes(asks, 0.0)
    assert not table.takes(BucketRequest(model="other"), 0.0)
    assert not table.takes(asks, 0.0, ["a2"])
    table.workerless.refused("a2", "o", 0.0)
    assert not table.takes(asks, 0.1)


def test_the_lightest_bucket_of_a_model_is_the_least_busy_that_serves_it() -> None:
    busy, free = BucketHeat(70.0, 0.5, 3), BucketHeat(20.0, 0.5, 3)
    loads = (BucketLoad(("m",), busy), BucketLoad(("n",), free), BucketLoad((), busy))

    assert lightest(loads, "m") == busy
    assert lightest(loads, "n") == free
    assert lightest(loads, "") == free
    assert lightest(loads[:2], "other") is None
