"""The scenes of the golden record: every mode, formula, wish, body form and failure, seeded."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.cost.formulas import COSTS
from kvmesh.core.members.worker_info import LoadReport, Trust
from kvmesh.core.prompts.byte_tokenizer import ByteTokenizer
from kvmesh.core.routing.disaggregation import DECODE, PREFILL
from kvmesh.settings.features import SplitSettings
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.requests import (
    AdmissionSettings,
    FailureSettings,
    ProgramSettings,
    SessionSettings,
    SloSettings,
    TenantSettings,
)
from kvmesh.settings.roles import CostSettings, RouterMode, RouterSettings
from kvmesh.transport.http.server.limits import HttpLimits
from tests.golden.fleet import ROUTER_PORT, Kept, Worker
from tests.golden.play import Ask, Scene

Headers = tuple[tuple[str, str], ...]
FILES: Final = Path(__file__).parents[1] / "fixtures" / "golden"
SYSTEMS: Final = [f"You are assistant {n}. " + "Answer kindly and in full. " * 12 for n in range(5)]
MODES: Final[tuple[RouterMode, ...]] = (
    "kv",
    "round-robin",
    "random",
    "least-loaded",
    "power-of-two",
)


def _ids(*texts: str) -> str:
    roles = ("system", "user")
    turns: list[dict[str, object]] = [
        {"role": role, "content": text} for role, text in zip(roles, texts, strict=False)
    ]
    return ByteTokenizer().pack_chat(ChatInput(turns))


FLEET: Final = (
    Worker(models=("m",), kept=(Kept(_ids(SYSTEMS[0]), 15), Kept(_ids(SYSTEMS[1]), 9))),
    Worker(models=("m",), kept=(Kept(_ids(SYSTEMS[1]), 18),), load=LoadReport(3, 1, 500, 2000)),
    Worker(models=("m",), first_s=0.1, token_s=0.02, trust=Trust.DEGRADED),
    Worker(models=("m", "other"), kept=(Kept(_ids(SYSTEMS[2]), 12, 1),), labels=("gpu:a",)),
    Worker(models=("m",), adapters=("lora",), labels=("gpu:b",), total_blocks=300),
    Worker(models=("m",), taints=("batch",), labels=("gpu:b",)),
)

ONE_TIER: Final = (
    *FLEET[:3],
    Worker(models=("m", "other"), kept=(Kept(_ids(SYSTEMS[2]), 12),), labels=("gpu:a",)),
    *FLEET[4:],
)
"""What the compiled decision takes: several tiers are another's."""


SPLIT_FLEET: Final = (
    Worker(models=("m",), kept=(Kept(_ids(SYSTEMS[0]), 15),), labels=(DECODE,)),
    Worker(models=("m",), labels=(DECODE,)),
    Worker(models=("m",), labels=(PREFILL,), taints=(PREFILL,)),
    Worker(models=("m",), labels=(PREFILL,), taints=(PREFILL,)),
)

SPLIT: Final[dict[str, Any]] = {
    "fleet": SPLIT_FLEET,
    "split": SplitSettings(prefill_split="always"),
    "cost": CostSettings(prefill_threshold=64),
}


def _settings(**parts: Any) -> RouterSettings:
    """Return a router's settings in which nothing depends on this machine or on chance."""
    cost = parts.pop("cost", CostSettings(kv_cache_block_size=16))
    return RouterSettings(
        router_id="golden",
        seed=7,
        parity_sample=0,
        vocab_size=300,
        cost=replace(cost, kv_cache_block_size=16),
        http=HttpSettings(
            http_port=ROUTER_PORT,
            drain_s=0.0,
            limits=HttpLimits(max_total_body_bytes=1 << 26),
            **parts.pop("http", {}),
        ),
        **parts,
    )


def _chat(rng: random.Random, **more: Any) -> dict[str, Any]:
    turns = [
        {"role": "system", "content": rng.choice(SYSTEMS)},
        {
            "role": "user",
            "content": f"Question {rng.randrange(40)}: " + "why? " * rng.randrange(60),
        },
    ]
    body = {"model": "m", "messages": turns, "max_tokens": rng.randrange(1, 24)}
    if rng.random() < 0.5:
        body["stream"] = True
    return body | more


def _load(
    seed: int,
    count: int,
    wishes: Callable[[random.Random, int], Headers] = lambda _rng, _n: (),
    body: Callable[[random.Random, int], dict[str, Any] | bytes] = lambda rng, _n: _chat(rng),
    *,
    gap_s: float = 0.02,
    path: str = "/v1/chat/completions",
    leaving: float = 0.04,
) -> list[Ask]:
    rng = random.Random(seed)
    at_s, asks = 0.0, []
    for number in range(count):
        at_s += rng.expovariate(1 / gap_s)
        leaves_s = rng.uniform(0.01, 0.2) if rng.random() < leaving else None
        asks.append(
            Ask(
                at_s=round(at_s, 6),
                body=body(rng, number),
                headers=wishes(rng, number),
                path=path,
                leaves_s=leaves_s,
            )
        )
    return asks


def _wish(*choices: Headers) -> Callable[[random.Random, int], Headers]:
    return lambda rng, _number: rng.choice(choices)


WISHES: Final[dict[str, Callable[[random.Random, int], Headers]]] = {
    "session": lambda rng, _: (("x-kvmesh-session", f"s{rng.randrange(6)}"),),
    "claude": lambda rng, _: (("x-claude-code-session-id", f"0123-{rng.randrange(6)}"),),
    "program": lambda rng, _: (("x-kvmesh-program", f"p{rng.randrange(4)}"),),
    "priority": _wish((("x-kvmesh-priority", "3"),), (("x-kvmesh-priority", "-2"),), ()),
    "timeout": _wish((("x-kvmesh-timeout-s", "60"),), (("x-kvmesh-timeout-s", "0.05"),), ()),
    "targets": _wish((("x-kvmesh-slo-ttft-ms", "2000"),), (("x-kvmesh-slo-ttft-ms", "5"),), ()),
    "weight": _wish((("x-kvmesh-overlap-score-weight", "2.0"),), ()),
    "temperature": _wish((("x-kvmesh-temperature", "0.7"),), ()),
    "mode": lambda rng, _: (("x-kvmesh-router-mode", rng.choice(MODES)),),
    "cost": lambda rng, _: (("x-kvmesh-cost", rng.choice(sorted(COSTS))),),
    "pin": lambda rng, _: (("x-kvmesh-worker-id", f"w{rng.randrange(7)}"),),
    "allowed": _wish(
        (("x-kvmesh-allowed-workers", "w0,w3"),), (("x-kvmesh-allowed-workers", "x"),)
    ),
    "labels": _wish((("x-kvmesh-labels", "gpu:b"),), (("x-kvmesh-labels", "gpu:a"),), ()),
    "tolerations": _wish((("x-kvmesh-tolerations", "batch"),), ()),
    "tenant": lambda rng, _: (("x-kvmesh-tenant", f"t{rng.randrange(3)}"),),
    "output": _wish((("x-kvmesh-output-tokens", "200"),), ()),
    "trace": _wish((("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),)),
    "sdk": lambda rng, _: (
        ("user-agent", f"OpenAI/Python 2.{rng.randrange(9)}"),
        ("x-stainless-retry-count", str(rng.randrange(2))),
        ("x-stainless-read-timeout", "600"),
        ("authorization", f"Bearer k{rng.randrange(5)}"),
    ),
}


def _every_wish(rng: random.Random, number: int) -> Headers:
    names = rng.sample(sorted(WISHES), 4)
    return tuple({one[0]: one for name in names for one in WISHES[name](rng, number)}.values())


def _fails(rng: random.Random, _number: int) -> Headers:
    ways = ("well", "well", "500", "503", "429", "400", "reset", "cut")
    return (("x-golden", ",".join(f"w{one}={rng.choice(ways)}" for one in range(6))),)


def _forms(rng: random.Random, number: int) -> dict[str, Any] | bytes:
    """Return bodies in every form that clients write."""
    body = _chat(rng)
    turns = body["messages"]
    forms: list[dict[str, Any] | bytes] = [
        body,
        body
        | {
            "messages": [
                {**one, "content": [{"type": "text", "text": one["content"]}]} for one in turns
            ]
        },
        body | {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
        body
        | {
            "messages": [
                *turns,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "c",
                            "type": "function",
                            "function": {"name": "f", "arguments": "{}"},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "c", "content": "42"},
            ]
        },
        body | {"model": "lora"},
        body | {"model": "other"},
        body | {"model": "nobody"},
        body | {"n": 2},
        body
        | {
            "user": "é\U0001f600\\u00e9",
            "messages": [*turns, {"role": "user", "content": 'é\U0001f600 "quoted" \n'}],
        },
        body | {"kvmesh": {"priority": 2, "session": f"b{number % 3}"}},
        body | {"cache_salt": "salt", "stream": True, "stream_options": {"include_usage": True}},
        body | {"response_format": {"type": "json_object"}, "logprobs": True},
        body
        | {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
            ]
        },
        body | {"messages": "no list"},
        json.dumps(body).encode()[:-3],
        json.dumps(body, ensure_ascii=False, indent=2).encode(),
        body | {"max_tokens": 10**25},
        body | {"messages": [{"role": "user", "content": "long " * 4000}]},
    ]
    return forms[number % len(forms)]


def _prompts(rng: random.Random, number: int) -> dict[str, Any] | bytes:
    """Return bodies of completions in every form."""
    text = rng.choice(SYSTEMS) + f"item {number}"
    forms: list[Any] = [
        text,
        [text],
        [text, text + "!"],
        [*text.encode()][:150],
        [[*b"abc" * 30]],
        [999],
        "",
    ]
    return {"model": "m", "prompt": forms[number % len(forms)], "max_tokens": 1 + number % 5}


def _growing(rng: random.Random, number: int) -> dict[str, Any]:
    """Return a conversation's next turn."""
    turns: list[dict[str, Any]] = [{"role": "system", "content": SYSTEMS[number % 3]}]
    for turn in range(1 + number // 3 % 8):
        turns += [
            {
                "role": "user",
                "content": f"conversation {number % 3}, turn {turn}: " + "go on. " * 9,
            },
            {"role": "assistant", "content": "well, " * 7},
        ]
    return {"model": "m", "messages": turns[:-1], "stream": rng.random() < 0.7, "max_tokens": 6}


def _keyed(rng: random.Random, number: int) -> Headers:
    """Return a key, at times a wrong one or none, and wishes."""
    key = rng.choice(("k-alice", "k-alice", "k-bob", "k-slow", "wrong", ""))
    own = (("authorization", f"Bearer {key}"),) if key else ()
    return (*own, *(one for one in _every_wish(rng, number) if one[0] != "authorization"))


def _paths() -> list[Ask]:
    """Return requests of paths beside chats and completions."""
    rng = random.Random(30)
    chat, text = _chat(rng) | {"stream": False}, {"model": "m", "prompt": "abc " * 30}
    many: list[tuple[str, str, dict[str, Any] | bytes]] = [
        ("POST", "/v1/messages", chat),
        ("POST", "/v1/messages", chat | {"stream": True}),
        ("POST", "/v1/responses", {"model": "m", "input": "hello " * 40}),
        ("POST", "/v1/embeddings", {"model": "m", "input": ["a", "b"]}),
        ("POST", "/v1/route", chat),
        ("POST", "/v1/route", chat | {"model": "nobody"}),
        ("POST", "/tokenize", text),
        ("POST", "/v1/score", text),
        ("POST", "/v1/unknown", text),
        ("POST", "/unknown", text),
        ("GET", "/v1/models", b""),
        ("GET", "/v1/models/m", b""),
        ("GET", "/v1/chat/completions", b""),
        ("GET", "/version", b""),
        ("PUT", "/v1/completions", text),
        ("DELETE", "/v1/files/f", b""),
        ("HEAD", "/ready", b""),
    ]
    return [
        Ask(at_s=0.1 * number, method=method, path=path, body=body)
        for number, (method, path, body) in enumerate(many)
    ]


def _one_wish(rng: random.Random, number: int) -> Headers:
    """Return one wish after the other."""
    return [*WISHES.values()][number % len(WISHES)](rng, number)


def _on_trial() -> list[Ask]:
    """Return a policy's change amidst requests."""
    change = Ask(
        at_s=0.3,
        method="PUT",
        path="/admin/policy",
        body={"formula": "lmetric", "min_requests": 20, "window_s": 1.0, "max_s": 60.0},
    )
    return [*_load(31, 80, gap_s=0.05, leaving=0.0), change]


def _scene(
    name: str, asks: Callable[[], list[Ask]], fleet: tuple[Worker, ...] = FLEET, **parts: Any
) -> Scene:
    return Scene(name=name, settings=_settings(**parts), fleet=fleet, asks=asks)


def scenes() -> list[Scene]:
    """Return all of them, in their order."""
    load = partial(_load, 1, 60)
    found = [_scene(f"mode {mode}", load, cost=CostSettings(router_mode=mode)) for mode in MODES]
    found += [
        _scene(f"cost {cost}", partial(_load, 2, 30), cost=CostSettings(kv_cost=cost))
        for cost in sorted(COSTS)
    ]
    found += [_scene(f"wish {name}", partial(_load, 3, 30, wish)) for name, wish in WISHES.items()]
    found += [
        _scene("every wish", partial(_load, 4, 120, _every_wish)),
        _scene("every wish refused", partial(_load, 5, 40, _every_wish), client_overrides=False),
        _scene("bodies", partial(_load, 6, 90, body=_forms)),
        _scene("bodies with wishes", partial(_load, 7, 90, _every_wish, _forms)),
        _scene("completions", partial(_load, 8, 42, body=_prompts, path="/v1/completions")),
        _scene("growing conversations", partial(_load, 9, 48, body=_growing, gap_s=0.3)),
        _scene("failures", partial(_load, 10, 120, _fails)),
        _scene(
            "failures and wishes",
            partial(_load, 11, 80, lambda rng, n: (*_fails(rng, n), *_every_wish(rng, n))),
        ),
        _scene(
            "no retries", partial(_load, 12, 40, _fails), failure=FailureSettings(retry_budget=0.0)
        ),
        _scene("no events", partial(_load, 13, 60), kv_events=False),
        _scene("no events, failures", partial(_load, 14, 60, _fails), kv_events=False),
        _scene("temperature", partial(_load, 15, 40), cost=CostSettings(router_temperature=0.5)),
        _scene(
            "tier weights",
            partial(_load, 16, 40),
            cost=CostSettings(host_tier_weight=0.3, disk_tier_weight=0.1),
        ),
        _scene(
            "sessions soft",
            partial(_load, 17, 50, WISHES["session"]),
            session=SessionSettings(session_affinity="soft"),
        ),
        _scene(
            "sessions hard",
            partial(_load, 18, 50, WISHES["session"]),
            session=SessionSettings(session_affinity="hard"),
        ),
        _scene(
            "held",
            partial(_load, 19, 80, _every_wish, gap_s=0.002),
            admission=AdmissionSettings(max_backlog_ms=30.0),
        ),
        _scene(
            "held by wspt",
            partial(_load, 20, 80, _every_wish, gap_s=0.002),
            admission=AdmissionSettings(max_backlog_ms=30.0, queue_policy="wspt", max_queued=20),
        ),
        _scene(
            "held by locality",
            partial(_load, 21, 60, WISHES["tenant"], gap_s=0.002),
            admission=AdmissionSettings(max_backlog_ms=30.0, queue_fairness="locality"),
        ),
        _scene(
            "busy",
            partial(_load, 22, 60, gap_s=0.002),
            admission=AdmissionSettings(busy_prefill_tokens=900),
        ),
        _scene(
            "targets",
            partial(_load, 23, 60, gap_s=0.004),
            slo=SloSettings(slo=("ttft-ms=400,tpot-ms=50",)),
        ),
        _scene(
            "programs off",
            partial(_load, 24, 40, WISHES["program"]),
            program=ProgramSettings(program_turns="off"),
        ),
        _scene(
            "programs in small caches",
            partial(_load, 25, 60, WISHES["program"], _growing, gap_s=0.2),
            fleet=tuple(Worker(models=("m",), total_blocks=40) for _ in range(2)),
        ),
        _scene(
            "policies of models",
            partial(_load, 26, 40),
            model_policy=("model=m*,kv-cost=lmetric,slo-ttft-ms=900",),
        ),
        _scene("keys", partial(_load, 32, 60, _keyed), http={"api_keys": FILES / "keys.toml"}),
        _scene(
            "tenants apart",
            partial(_load, 33, 60, WISHES["tenant"], _forms),
            tenant=TenantSettings(tenant_secret_file=FILES / "secret"),
        ),
        _scene("prefill and decode", partial(_load, 34, 60), **SPLIT),
        _scene("prefill and decode, failures", partial(_load, 35, 40, _fails), **SPLIT),
        _scene("a policy on trial", _on_trial),
        _scene("paths", _paths),
        _scene("one worker", partial(_load, 27, 30, _fails), fleet=FLEET[:1]),
        _scene(
            "nobody",
            partial(_load, 28, 4),
            fleet=(),
            failure=FailureSettings(wait_for_worker_s=0.5),
        ),
        _scene(
            "many equal",
            partial(_load, 29, 60),
            fleet=tuple(Worker(models=("m",)) for _ in range(24)),
        ),
        _scene("one tier", partial(_load, 36, 60), ONE_TIER),
        _scene("one tier, one wish", partial(_load, 37, 6 * len(WISHES), _one_wish), ONE_TIER),
        _scene("one tier, every wish", partial(_load, 38, 120, _every_wish), ONE_TIER),
        _scene("one tier, failures", partial(_load, 39, 60, _fails), ONE_TIER),
        _scene(
            "one tier, keys",
            partial(_load, 40, 60, _keyed),
            ONE_TIER,
            http={"api_keys": FILES / "keys.toml"},
        ),
        _scene(
            "one tier, sessions",
            partial(_load, 41, 50, WISHES["session"]),
            ONE_TIER,
            session=SessionSettings(session_affinity="soft"),
        ),
        _scene(
            "one tier, held",
            partial(_load, 42, 80, _one_wish, gap_s=0.002),
            ONE_TIER,
            admission=AdmissionSettings(max_backlog_ms=30.0),
        ),
        *_of_bodies(),
    ]
    return found


def _of_bodies() -> list[Scene]:
    """Return what depends on more of a body than its text: the salt, parts, tools, a template."""
    apart = TenantSettings(tenant_secret_file=FILES / "secret")
    model = FILES / "model"
    return [
        _scene("one tier, bodies", partial(_load, 43, 90, body=_forms), ONE_TIER),
        _scene(
            "one tier, tenants apart",
            partial(_load, 44, 90, WISHES["tenant"], _forms),
            ONE_TIER,
            tenant=apart,
        ),
        _scene(
            "one tier, tenants apart, failures",
            partial(_load, 45, 60, lambda rng, n: (*_fails(rng, n), *WISHES["tenant"](rng, n))),
            ONE_TIER,
            tenant=apart,
        ),
        _scene(
            "one tier, a template",
            partial(_load, 46, 90, _every_wish, _forms),
            ONE_TIER,
            tokenizer=model,
        ),
        _scene(
            "one tier, a template, tenants apart",
            partial(_load, 47, 90, WISHES["tenant"], _forms),
            ONE_TIER,
            tokenizer=model,
            tenant=apart,
        ),
        _scene(
            "one tier, a template, growing conversations",
            partial(_load, 48, 48, body=_growing, gap_s=0.3),
            ONE_TIER,
            tokenizer=model,
        ),
    ]
