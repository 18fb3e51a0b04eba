"""The pretend vLLM over real sockets, used by the clients people use."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from kvmesh.app.members.engine_load import parse_gauges
from kvmesh.app.process.running import Stop
from kvmesh.core.blocks.hashing import namespace_root, sequence_hashes, unpack_hashes
from kvmesh.core.engines.engine_events import EngineCleared, EngineRemoved, EngineStored
from kvmesh.core.engines.kv_events.dialect import decode_engine_batch
from kvmesh.core.engines.kv_events.event_source import SourceOptions
from kvmesh.errors import ConfigError
from kvmesh.transport.zmq.subscriber import EventSubscription, SubscriptionOptions
from kvmesh_lab.mocker.command import Mocker, MockerOptions, options_from, run_mocker
from kvmesh_lab.mocker.settings import MockerSettings
from tests.integration.support.waiting import until
from tests.unit.app.prompts.tokenizer_models import write_model

pytestmark = pytest.mark.integration

SMALL: dict[str, Any] = {
    "port": 0,
    "kv_events_port": 0,
    "replay_port": 0,
    "timing_profile": "instant",
    "num_gpu_blocks_override": 512,
}


@asynccontextmanager
async def serving(**changes: Any) -> AsyncIterator[tuple[Mocker, httpx.AsyncClient]]:
    mocker = Mocker(MockerOptions(**SMALL | changes))
    await mocker.start()
    try:
        async with httpx.AsyncClient(base_url=mocker.url, timeout=60) as client:
            yield mocker, client
    finally:
        await mocker.stop()
        await mocker.stop()


@asynccontextmanager
async def openai_client(mocker: Mocker) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{mocker.url}/v1", api_key="x", max_retries=0) as client:
        yield client


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def events_of(body: str) -> list[Any]:
    """The chunks of a stream, which must end with [DONE]."""
    lines = body.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def test_the_openai_client_streams_a_chat() -> None:
    async with serving() as (mocker, _), openai_client(mocker) as client:
        whole = await client.chat.completions.create(
            model="mock", messages=user("hi"), max_tokens=20
        )
        stream = await client.chat.completions.create(
            model="mock",
            messages=user("hi"),
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]

        assert chunks[0].choices[0].delta.role == "assistant"
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
        assert text == whole.choices[0].message.content
        assert [chunk.choices[0].finish_reason for chunk in chunks[-2:-1]] == ["length"]
        assert chunks[-1].usage is not None
        assert whole.usage is not None
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 20
        assert len(chunks) == 22
        assert [model.id async for model in client.models.list()] == ["mock"]


async def test_the_openai_client_gets_responses_and_embeddings() -> None:
    prompt = "What everybody asks about, again and again. " * 20
    async with serving() as (mocker, _), openai_client(mocker) as client:
        whole = await client.responses.create(model="mock", input=prompt, max_output_tokens=9)
        stream = await client.responses.create(
            model="mock", input=prompt, max_output_tokens=9, stream=True
        )
        events = [event async for event in stream]
        vectors = await client.embeddings.create(model="mock", input=["a", "a", "b"])

        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert len(deltas) == 9
        assert "".join(deltas) == whole.output_text
        ended = events[-1]
        assert ended.type == "response.incomplete"
        assert ended.response.usage is not None
        assert ended.response.usage.input_tokens_details.cached_tokens >= len(prompt) - 32
        first, second, third = (one.embedding for one in vectors.data)
        assert first == second != third


async def test_anthropics_messages_stream_what_they_answer_whole() -> None:
    body = {"model": "mock", "max_tokens": 9, "system": "Be kind.", "messages": user("hi")}
    async with serving() as (_, client):
        whole = (await client.post("/v1/messages", json=body)).json()
        streamed = (await client.post("/v1/messages", json=body | {"stream": True})).text
        refused = await client.post("/v1/messages", json={"model": "mock", "messages": user("hi")})

        events = [json.loads(line[6:]) for line in streamed.splitlines() if line[:5] == "data:"]
        deltas = [one["delta"]["text"] for one in events if one["type"] == "content_block_delta"]
        assert "".join(deltas) == whole["content"][0]["text"]
        assert whole["stop_reason"] == "max_tokens"
        assert events[-1] == {"type": "message_stop"}
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")


async def test_completions_take_texts_ids_and_lists_of_them() -> None:
    async with serving() as (mocker, client), openai_client(mocker) as api:
        prompts: list[Any] = ["ab", [97, 98], ["ab", "cd"], [[97, 98], [99, 100]]]
        texts = [
            [
                choice.text
                for choice in (await api.completions.create(model="mock", prompt=p)).choices
            ]
            for p in prompts
        ]

        assert texts[0] == texts[1] == texts[2][:1] == texts[3][:1]
        assert texts[2] == texts[3]
        several = {"prompt": ["ab", "cd"], "n": 2, "max_tokens": 3, "stream": True}
        chunks = events_of((await client.post("/v1/completions", json=several)).text)
        assert Counter(chunk["choices"][0]["index"] for chunk in chunks) == dict.fromkeys(
            range(4), 3
        )
        reply = await api.completions.create(model="mock", prompt=["ab", "cd"], n=2, max_tokens=3)
        assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
        assert len({choice.text for choice in reply.choices}) == 4
        assert reply.usage is not None
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (4, 12)


@pytest.mark.parametrize("of_a_model", [False, True])
async def test_the_next_turn_finds_question_and_answer_in_the_cache(
    of_a_model: bool, tmp_path: Path
) -> None:
    tokenizer = write_model(tmp_path / "model") if of_a_model else None
    async with serving(tokenizer=tokenizer) as (mocker, _), openai_client(mocker) as api:
        messages = user("tell me about caches " * 20)
        first = await api.chat.completions.create(model="mock", messages=messages, max_tokens=100)
        answer = first.choices[0].message.content
        messages += [{"role": "assistant", "content": answer}, *user("and then?")]
        second = await api.chat.completions.create(model="mock", messages=messages, max_tokens=5)

    assert answer
    assert len(answer.split()) > 20 or not of_a_model
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    reusable = first.usage.prompt_tokens + 99
    cached = second.usage.prompt_tokens_details.cached_tokens or 0
    if of_a_model:
        assert cached >= reusable - 2 * 16
    else:
        assert cached == reusable // 16 * 16


async def test_token_ids_usage_and_request_id_are_told_as_vllm_does() -> None:
    async with serving() as (_, client):
        body = {
            "messages": user("hi"),
            "max_tokens": 3,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        headers = {"x-request-id": "mine"}
        reply = await client.post("/v1/chat/completions", json=body, headers=headers)
        opening, *tokens, usage = events_of(reply.text)

        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert opening["id"] == "chatcmpl-mine"
        assert opening["prompt_token_ids"] == [262, 104, 105, 257, 263]
        assert [chunk["usage"]["completion_tokens"] for chunk in tokens] == [1, 2, 3]
        text = bytes(i for chunk in tokens for i in chunk["choices"][0]["token_ids"]).decode()
        assert text == "".join(chunk["choices"][0]["delta"]["content"] for chunk in tokens)
        assert usage["choices"] == []

        whole = await client.post(
            "/v1/completions",
            json={"prompt": "hi", "request_id": "theirs", "return_token_ids": True},
        )
        assert whole.json()["id"] == "cmpl-theirs"
        assert whole.json()["choices"][0]["prompt_token_ids"] == [104, 105]


async def test_a_stop_string_never_shows_and_ends_the_answer() -> None:
    async with serving() as (_, client):
        body: dict[str, Any] = {"prompt": "hello", "max_tokens": 60}
        text = (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"]
        body["stop"] = [text[25:31]]
        whole = (await client.post("/v1/completions", json=body)).json()["choices"][0]
        chunks = events_of(
            (await client.post("/v1/completions", json=body | {"stream": True})).text
        )

        assert whole["text"] == text[: text.index(text[25:31])]
        assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", text[25:31])
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["text"]
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_errors_have_vllms_shape_and_the_clients_types() -> None:
    async with serving(max_model_len=64) as (mocker, client), openai_client(mocker) as api:
        with pytest.raises(NotFoundError, match="does not exist"):
            await api.chat.completions.create(model="other", messages=user("x"))
        with pytest.raises(BadRequestError, match="maximum context length is 64"):
            await api.completions.create(model="mock", prompt="x" * 65)
        refusals = [
            ("POST", "/v1/completions", b"{", 400),
            ("POST", "/v1/completions", b'{"prompt": [1000000]}', 400),
            ("POST", "/v1/completions", b'{"prompt": "x", "echo": true}', 400),
            ("POST", "/v1/chat/completions", b'{"messages": []}', 400),
            ("POST", "/tokenize", b"{}", 400),
            ("POST", "/detokenize", b'{"tokens": "x"}', 400),
            ("GET", "/v1/completions", b"", 405),
            ("GET", "/kvmesh/dump?rank=7", b"", 400),
            ("GET", "/nothing", b"", 404),
        ]
        for method, path, content, status in refusals:
            reply = await client.request(method, path, content=content)
            assert reply.status_code == status, path
            assert reply.json()["error"]["code"] == status
            assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
        assert mocker.ranks[0].statistics().running_requests == 0


async def test_a_client_that_goes_away_frees_its_blocks_at_once() -> None:
    slow = {"timing_profile": "linear,decode_base=60000"}
    body = {"prompt": "x" * 200, "max_tokens": 1000, "ignore_eos": True, "stream": True, "n": 2}
    async with serving(**slow) as (mocker, client):
        rank = mocker.ranks[0]
        async with client.stream("POST", "/v1/completions", json=body) as reply:
            await anext(reply.aiter_lines())
            assert rank.statistics().running_requests == 2
            assert (await client.get("/load")).json() == {"server_load": 1}
            steps = rank.statistics().steps
        await until(lambda: rank.statistics().active_blocks == 0)

        # Not with the end of the step of a minute that was under way.
        assert rank.statistics().steps == steps
        assert (await client.get("/load")).json() == {"server_load": 0}
        page = (await client.get("/metrics")).text
        assert 'finished_reason="abort",model_name="mock"} 2.0' in page


class Cache:
    """What an observer of the events believes the engine holds. An `EventListener`."""

    def __init__(self) -> None:
        self.held: Counter[tuple[int, str]] = Counter()
        self.contents: dict[int, int] = {}
        self.last_seq = -1
        self.received: list[str] = []

    def on_batch(self, seq: int, payload: bytes) -> None:
        assert seq == self.last_seq + 1
        self.last_seq = seq
        batch = decode_engine_batch(payload)
        assert batch.unknown_fields == batch.unknown_tags == 0
        for event in batch.events:
            match event:
                case EngineStored():
                    self.store(event)
                case EngineRemoved():
                    for digest in event.hashes:
                        self.held[digest, ""] -= 1
                        assert self.held[digest, ""] >= 0
                case EngineCleared():
                    self.received.append("cleared")
                    self.held.clear()

    def store(self, event: EngineStored) -> None:
        root = namespace_root(lora=event.lora or "", cache_salt=event.salt or "")
        parent = None if event.parent is None else self.contents[event.parent]
        made = sequence_hashes(event.tokens, event.block_size, root, parent)
        for digest, content in zip(event.hashes, made, strict=True):
            assert self.contents.setdefault(digest, content) == content
            assert digest != content
            self.held[digest, ""] += 1

    def on_restarted(self) -> None:
        self.received.append("restarted")

    def on_lost(self, first: int, last: int) -> None:
        self.received.append(f"lost {first}..{last}")

    def on_resumed(self, seq: int) -> None:
        raise AssertionError(seq)

    def on_caught_up(self, last_seq: int) -> None:
        self.received.append(f"caught up {last_seq}")

    def on_connection(self, *, connected: bool) -> None:
        del connected

    def content(self) -> set[int]:
        return {self.contents[digest] for (digest, _), count in self.held.items() if count}


@asynccontextmanager
async def following(mocker: Mocker, rank: int = 0) -> AsyncIterator[Cache]:
    cache = Cache()
    options = SubscriptionOptions(
        endpoint=mocker.kv_events_endpoint(rank),
        replay_endpoint=mocker.replay_endpoint(rank),
        source=SourceOptions(reply_timeout_s=5.0),
    )
    subscription = EventSubscription(options, cache)
    subscription.start()
    try:
        yield cache
    finally:
        subscription.close()


async def dump(client: httpx.AsyncClient, rank: int = 0) -> set[int]:
    return set(unpack_hashes((await client.get(f"/kvmesh/dump?rank={rank}")).content))


def prompts(count: int) -> list[str]:
    """Prompts that share prefixes of several lengths, some a whole number of blocks."""
    return [f"{'common ' * 30}{f'topic {n % 5} ' * (n % 7)}{'x' * (n % 16)}" for n in range(count)]


@pytest.mark.parametrize("replay_hwm", [0, 200])
async def test_events_add_up_to_the_cache_for_live_and_late_observers(replay_hwm: int) -> None:
    async with (
        serving(num_gpu_blocks_override=80, replay_hwm=replay_hwm) as (mocker, client),
        following(mocker) as live,
    ):
        salts: list[str | None] = [None, None, "tenant-a", "tenant-b"]

        async def send(number: int, prompt: str) -> None:
            body = {
                "prompt": prompt,
                "max_tokens": 1 + number % 60,
                "cache_salt": salts[number % 4],
                "ignore_eos": True,
            }
            reply = await client.post("/v1/completions", json=body)
            assert reply.status_code == 200, reply.text

        await asyncio.gather(*(send(*pair) for pair in enumerate(prompts(200))))
        published = mocker.ranks[0].publisher
        assert published is not None
        async with following(mocker) as late:
            await until(lambda: late.last_seq == published.next_seq - 1)
            await until(lambda: live.last_seq == published.next_seq - 1)

            truth = await dump(client)
            assert truth
            assert live.content() == truth
            assert late.content() == truth
            received = live.received + late.received
        assert not [word for word in received if not word.startswith("caught up")]
        assert mocker.ranks[0].statistics().prefix_cache_hits > 0


async def test_a_reset_is_told_with_the_next_step() -> None:
    async with serving() as (mocker, client), following(mocker) as cache:
        await client.post("/v1/completions", json={"prompt": "x" * 100})
        await until(cache.content)

        assert (await client.post("/reset_prefix_cache")).json() == {"success": True}
        assert await dump(client) == set()
        assert "cleared" not in cache.received
        await client.post("/v1/completions", json={"prompt": "y" * 100})
        await until(lambda: "cleared" in cache.received)

        truth = await dump(client)
        await until(lambda: cache.content() == truth)


async def test_ranks_have_their_own_ports_caches_and_events() -> None:
    async with serving(data_parallel_size=2) as (mocker, client):
        sources = (await client.get("/kv_event_sources")).json()
        assert [sources[rank]["endpoint"] for rank in "01"] == [
            mocker.kv_events_endpoint(0),
            mocker.kv_events_endpoint(1),
        ]
        body = {"prompt": "x" * 100}
        named = await client.post(
            "/v1/completions", json=body, headers={"x-data-parallel-rank": "1"}
        )
        assert named.status_code == 200
        assert await dump(client, 0) == set()
        async with following(mocker, 1) as cache:
            truth = await dump(client, 1)
            await until(lambda: cache.content() == truth)

        wrong = await client.post(
            "/v1/completions", json=body, headers={"x-data-parallel-rank": "2"}
        )
        assert "out of range [0, 2)" in wrong.json()["error"]["message"]
        gauges = parse_gauges((await client.get("/metrics")).text)
        assert sorted(gauges) == [0, 1]
        assert gauges[1].total_blocks == 512


async def test_without_a_rank_named_the_less_loaded_one_serves() -> None:
    slow = {"timing_profile": "linear,decode_base=1000", "data_parallel_size": 2}
    async with serving(**slow) as (mocker, client):
        body = {"prompt": "x", "max_tokens": 100, "stream": True}
        async with (
            client.stream("POST", "/v1/completions", json=body),
            client.stream("POST", "/v1/completions", json=body),
        ):
            await until(lambda: all(r.statistics().running_requests for r in mocker.ranks.values()))


async def test_metrics_are_vllms() -> None:
    async with serving(timing_profile="linear", speedup_ratio=20) as (mocker, client):
        for _ in range(2):
            await client.post("/v1/completions", json={"prompt": "x" * 100, "max_tokens": 5})
        page = (await client.get("/metrics")).text
        label = '{engine="0",model_name="mock"}'

        for line in (
            f"vllm:num_requests_running{label} 0.0",
            f"vllm:num_requests_waiting{label} 0.0",
            f"vllm:kv_cache_usage_perc{label} 0.0",
            f"vllm:prefix_cache_queries_total{label} 200.0",
            f"vllm:prefix_cache_hits_total{label} 96.0",
            f"vllm:prompt_tokens_total{label} 200.0",
            f"vllm:generation_tokens_total{label} 10.0",
            f"vllm:time_to_first_token_seconds_count{label} 2.0",
            f"vllm:inter_token_latency_seconds_count{label} 8.0",
            f"vllm:e2e_request_latency_seconds_count{label} 2.0",
            f"vllm:request_generation_tokens_sum{label} 10.0",
        ):
            assert line in page, line
        assert mocker.ranks[0].statistics().steps == 10


async def test_a_speed_up_makes_the_same_work_so_much_faster() -> None:
    body = {"prompt": "x" * 100, "max_tokens": 21}
    timing = "linear,decode_base=100"
    async with serving(timing_profile=timing, speedup_ratio=8) as (_, client):
        began = time.perf_counter()
        await client.post("/v1/completions", json=body)
        took = time.perf_counter() - began

    as_in_life = (5 + 100 * 0.05 + 20 * 100) / 1000
    assert as_in_life / 8 <= took < as_in_life


async def test_texts_and_chats_are_tokenized_and_back() -> None:
    async with serving() as (_, client):
        text = (
            await client.post("/tokenize", json={"prompt": "hi", "return_token_strs": True})
        ).json()
        chat = (await client.post("/tokenize", json={"messages": user("hi")})).json()
        back = (await client.post("/detokenize", json={"tokens": text["tokens"]})).json()

        assert text == {
            "count": 2,
            "max_model_len": 511 * 16,
            "tokens": [104, 105],
            "token_strs": ["h", "i"],
        }
        assert chat["tokens"] == [262, 104, 105, 257, 263]
        assert back == {"prompt": "hi"}


async def test_adapters_are_models_with_caches_of_their_own() -> None:
    async with serving(lora_modules=("adapter",)) as (mocker, client), following(mocker) as cache:
        cached: list[int] = []
        for model in ("mock", "adapter", "adapter"):
            body = {"prompt": "x" * 100, "model": model}
            reply = (await client.post("/v1/completions", json=body)).json()
            assert reply["model"] == model
            cached.append(reply["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert cached == [0, 0, 96]
        truth = await dump(client)
        await until(lambda: cache.content() == truth)
        models = (await client.get("/v1/models")).json()["data"]
        assert [(card["id"], card["parent"]) for card in models] == [
            ("mock", None),
            ("adapter", "mock"),
        ]


async def test_one_model_is_served_under_several_names_with_one_cache() -> None:
    async with serving(model="first", aliases=("second",)) as (_, client):
        cached: list[int] = []
        for model in ("first", "second", ""):
            body = {"prompt": "x" * 100} | ({"model": model} if model else {})
            reply = (await client.post("/v1/completions", json=body)).json()
            assert reply["model"] == "first"
            cached.append(reply["usage"]["prompt_tokens_details"]["cached_tokens"])
        other = await client.post("/v1/completions", json={"prompt": "x", "model": "third"})
        models = (await client.get("/v1/models")).json()["data"]

    assert cached == [0, 96, 96]
    assert other.status_code == 404
    assert [card["id"] for card in models] == ["first", "second"]


async def test_small_endpoints_answer_like_vllms() -> None:
    async with serving(enable_kv_cache_events=False) as (mocker, client):
        for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")):
            reply = await client.request(method, path)
            assert (reply.status_code, reply.content) == (200, b"")
        assert (await client.get("/version")).json() == {"version": "0.32.0"}
        assert (await client.get("/kv_event_sources")).json() == {}
        assert mocker.kv_events_endpoint() == mocker.replay_endpoint() == ""
        assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == 200


async def test_long_texts_are_tokenized_beside_the_event_loop() -> None:
    async with serving() as (_, client):
        body = {"prompt": "x" * (5 << 20)}
        reply = await client.post("/v1/completions", json=body)
        assert "maximum context length" in reply.json()["error"]["message"]

        body = {"prompt": "x", "user": "y" * (5 << 20)}
        reply = await client.post("/v1/completions", json=body)
        assert reply.status_code == 200

        keep = {"prompt": "z" * 1000, "truncate_prompt_tokens": 10}
        usage = (await client.post("/v1/completions", json=keep)).json()["usage"]
        assert usage["prompt_tokens"] == 10


async def test_hundreds_of_answers_at_once_are_all_whole() -> None:
    async with serving(max_num_seqs=64) as (_, client):
        limits = asyncio.Semaphore(90)

        async def send(number: int) -> int:
            async with limits:
                body = {"prompt": f"request {number}", "max_tokens": 20, "stream": True}
                reply = await client.post("/v1/completions", json=body)
                return len(events_of(reply.text))

        assert set(await asyncio.gather(*map(send, range(300)))) == {20}


def test_wrong_options_are_refused_at_once() -> None:
    for changes, message in (
        ({"kv_events_port": 5557, "replay_port": 5558, "data_parallel_size": 2}, "overlap"),
        ({"data_parallel_size": 0}, "at least 1"),
        ({"lora_modules": ("poet", "")}, "--lora-modules ''"),
        ({"lora_modules": ("mock",)}, "--lora-modules 'mock'"),
        ({"timing_profile": "fast"}, "none of dynamo"),
        ({"block_size": 0}, "block_size"),
    ):
        with pytest.raises(ConfigError, match=message):
            Mocker(MockerOptions(**SMALL | changes))


async def test_a_taken_port_stops_the_start_and_leaves_nothing_open() -> None:
    async with serving() as (mocker, _):
        port = int(mocker.url.rpartition(":")[2])
        with pytest.raises(ConfigError, match="--http-port"):
            await Mocker(MockerOptions(**SMALL | {"port": port})).start()
        events = int(mocker.kv_events_endpoint().rpartition(":")[2])
        second = "name another port: --kv-events-port, --kv-replay-port and, of a second mocker"
        with pytest.raises(ConfigError, match=second):
            await Mocker(MockerOptions(**SMALL | {"kv_events_port": events})).start()
        with pytest.raises(ConfigError, match="name an address of this machine: --http-host"):
            await Mocker(MockerOptions(**SMALL | {"host": "192.0.2.1"})).start()


async def test_the_command_serves_until_it_is_told_to_stop() -> None:
    options = options_from(MockerSettings(http_port=0, kv_events_port=0, kv_replay_port=0))
    stop = Stop()
    running = asyncio.create_task(run_mocker(options, stop))
    await asyncio.sleep(0)
    stop.request()

    await asyncio.wait_for(running, 60)
    assert options.block_size == 16
