"""What clients, engines and files say, under any bytes: refused as it should be, or taken."""

import contextlib
import math
from collections.abc import Callable, Generator, Iterator
from typing import Final, TypeVar

import msgspec

from kvmesh.app.members.engine_load import load_of, parse_gauges
from kvmesh.app.prompts.prompt_outline import prompt_outline
from kvmesh.app.prompts.request_wishes import RequestWishes, WishOptions, WishReader
from kvmesh.core.admission.api_keys import parse_keys
from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.chat.inference import read_chat
from kvmesh.core.engines.handshake import Meeting
from kvmesh.core.engines.registry import ENGINES
from kvmesh.core.prompts.probe_request import one_token_body, tokenized_ids
from kvmesh.core.routing.choice.split_forms import why_whole
from kvmesh.core.routing.model_policy import ModelPolicies, parse_model_policy
from kvmesh.errors import CodecError, ConfigError, KvMeshError, RequestError
from kvmesh.transport.http.openai import (
    ENDPOINTS,
    first_prompt,
    form_model,
    parse_request,
    prompt_endpoint,
)
from kvmesh.transport.http.server.request import Request
from kvmesh_lab.traces.trace import parse_trace

T = TypeVar("T")

PATHS: Final = [path for path, one in ENDPOINTS.items() if one.prompt is not None]
WISHES: Final = WishReader(WishOptions(tenant_header="x-tenant"), ModelPolicies(()))
KEY_DIGITS: Final = 32
MOST_ENDPOINTS: Final = 4096
"""More data-parallel ranks no engine has: what lists more wants to fill our memory."""


def body(data: bytes) -> None:
    """Read a request's body; the first byte chooses the path. What chats need agrees with it."""
    if not data:
        return
    path, sent = PATHS[data[0] % len(PATHS)], data[1:]
    endpoint = ENDPOINTS[path]
    form_model(sent, b"multipart/form-data; boundary=b")
    chat = read_chat(sent)
    with contextlib.suppress(RequestError):
        prompt_endpoint(sent)
    try:
        parsed = parse_request(sent, endpoint)
    except RequestError:
        assert chat is None or endpoint.prompt != "messages"
        return
    assert parsed.output_limit is None or parsed.output_limit >= 0
    with contextlib.suppress(RequestError):
        prompt_outline(endpoint, parsed)
    with contextlib.suppress(RequestError):
        _finite(WISHES.read(Request("POST", path.encode(), [], sent), parsed))
    with contextlib.suppress(RequestError):
        if endpoint.prompt != "messages":
            first_prompt(parsed.prompt if endpoint.prompt == "prompt" else parsed.input)


def headers(data: bytes) -> None:
    """Read wishes of headers, `name: value` lines."""
    lines = [line.partition(b":") for line in data.split(b"\n")]
    sent = [(name.strip().lower(), value.strip()) for name, _, value in lines]
    with contextlib.suppress(RequestError):
        _finite(WISHES.read(Request("POST", b"/v1/completions", sent)))


def _finite(wishes: RequestWishes) -> None:
    names = wishes.names
    assert names is None or len(names.agent) == len(names.program) == KEY_DIGITS
    for value in msgspec.structs.astuple(wishes):
        assert not isinstance(value, float) or math.isfinite(value), wishes
        assert not isinstance(value, int) or abs(value) < 1 << 63, wishes


def chat(data: bytes) -> None:
    """Shape a chat for every kind's template."""
    with contextlib.suppress(RequestError):
        ChatInput.from_body(data)


def rewritten(data: bytes) -> None:
    """Rewrite a body for prefill, decode, and probes: what was JSON still is, or is refused."""
    try:
        msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        read: Callable[[bytes], object] = bytes
    else:
        read = msgspec.json.decode
    for engine in ENGINES.values():
        for way in engine.connectors:
            meeting = Meeting("h", 1, 2)
            with contextlib.suppress(CodecError):
                read(way.prefill(data, meeting))
                read(way.decode(data, meeting, msgspec.Raw(b"{}")))
    why_whole(data)
    with contextlib.suppress(KvMeshError):
        one_token_body(data)


def answers(data: bytes) -> None:
    """Read what engines answer: transfers, token ids, pages of load and of themselves."""
    tokenized_ids(data)
    pages = data.split(b"\0")
    for engine in ENGINES.values():
        if engine.prompt_ids is not None:
            engine.prompt_ids.read(data)
        for way in engine.connectors:
            if way.answers is not None:
                way.answers(data)
            if way.engine_ids is not None:
                way.engine_ids(data)
        if engine.read_loads is not None:
            with contextlib.suppress(CodecError):
                engine.read_loads(data)
        facts = _interview(engine.recognise("host"), pages)
        if facts is not None:
            assert len(facts.endpoints) <= MOST_ENDPOINTS
        _interview(engine.identify(), pages)


def _interview(asking: Generator[str, bytes | None, T], pages: list[bytes]) -> T:
    """Answer each question with the next page, with none at the end."""
    left = iter(pages)
    try:
        next(asking)
        while True:
            asking.send(next(left, None))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


def metrics(data: bytes) -> None:
    """Read an engine's page of metrics."""
    for gauges in parse_gauges(data.decode(errors="replace")).values():
        load = load_of(gauges)
        assert load.used_blocks >= 0, load


def files(data: bytes) -> None:
    """Read files and flags of an operator: keys, traces, policies of models."""
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(ConfigError):
        parse_keys(text, "keys")
    with contextlib.suppress(ConfigError):
        parse_trace(data.splitlines(), "trace")
    with contextlib.suppress(ConfigError):
        parse_model_policy(text)


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "body": body,
    "headers": headers,
    "chat": chat,
    "rewritten": rewritten,
    "answers": answers,
    "metrics": metrics,
    "files": files,
}

CHAT: Final = (
    b'{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],'
    b'"max_tokens":5,"n":2,"priority":-1,"cache_salt":"s","kvmesh":{"mode":"kv","priority":3}}'
)
PROGRAM: Final = (
    b'{"messages":[],"prompt":"a","input":"a","metadata":{"user_id":"user_a_account__session_%b"},'
    b'"prompt_cache_key":"%b","nvext":{"agent_hints":{"priority":5,"strict_priority":1,"osl":9}},'
    b'"kvmesh":{"program":"p","program_parent":"q","program_final":true}}'
) % (b"0" * 32, b"01234567-0123-0123-0123-0123456789ab")
SEEDS: Final[dict[str, tuple[bytes, ...]]] = {
    "body": (
        b"\0" + CHAT,
        b"\1" + b'{"prompt":[1,2,3],"max_tokens":1e30}',
        b"\2" + b'{"input":"x","max_output_tokens":7}',
        *(bytes([at]) + PROGRAM for at in range(len(PATHS))),
    ),
    "headers": (
        b"x-kvmesh-priority: 9\nx-kvmesh-temperature: 0.5\nx-kvmesh-overlap-score-weight: 2",
        b"x-kvmesh-mode: kv\nx-kvmesh-worker: w\nx-kvmesh-labels: a,b\nx-tenant: t",
        b"x-kvmesh-output-tokens: 5\nx-kvmesh-timeout-s: 5\nx-kvmesh-session: s",
        b"x-kvmesh-program: p\nx-kvmesh-program-parent: q\nx-kvmesh-program-final: 1",
        b"x-claude-code-session-id: s\nx-claude-code-agent-id: a\nx-tenant: t",
        b"session-id: s\nthread-id: t\nx-codex-parent-thread-id: p",
        b"x-dynamo-session-id: s\nx-dynamo-parent-session-id: p\nx-dynamo-session-final: true",
        b"x-correlation-id: c\nuser-agent: aiperf/1.0",
    ),
    "chat": (CHAT, b'{"messages":[{"role":"a","tool_calls":[{"function":{"name":"f"}}]}]}'),
    "rewritten": (CHAT,),
    "answers": (
        b'{"version":"0.32.0"}\0{"0":{"enable_kv_cache_events":true,"endpoint":"tcp://*:5"}}',
        b'{"page_size":16,"kv_events":{"endpoint_port_base":5,"dp_size":2,"topic":"t"}}\0{}\0{}',
        b'{"kv_transfer_params":{"a":1},"prompt_token_ids":[1,2],"tokens":[3]}',
        b'{"loads":[{"dp_rank":0,"num_running_reqs":3}]}',
    ),
    "metrics": (
        b'vllm:num_requests_running{engine="0"} 3\nvllm:kv_cache_usage_perc 0.5\n',
        b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n',
        b'sglang:num_running_reqs{dp_rank="1"} 2\nsglang:max_total_num_tokens 1000\n',
    ),
    "files": (
        b'[keys.a]\nsha256 = "' + b"0" * 64 + b'"\nrequests_per_minute = 5\n',
        b'{"timestamp":1,"input_length":3,"output_length":1,"hash_ids":[1]}\n',
        b"model=llama*,router-temperature=0.1,labels=gpu:h100",
    ),
}


def seeds(target: str) -> Iterator[bytes]:
    """Yield well-formed inputs."""
    yield from SEEDS[target]
