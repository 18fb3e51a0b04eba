"""Prefill and decode on two real vLLMs, KV caches moved by NIXL over TCP."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engines.nixl.fleet import NixlFleet, running
from tests.engines.tiny_model import VOCABULARY
from tests.unit.app.prompts.tokenizer_models import corpus

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"


@pytest.fixture(scope="module", params=["nixl", "nixl-push"])
def fleet(
    request: pytest.FixtureRequest,
    nixl: Path,
    model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[NixlFleet]:
    directory = tmp_path_factory.mktemp(request.param)
    with running(directory, nixl, model, request.param, ["p0", "d0", "d1"]) as fleet:
        yield fleet


def prompts(seed: int, count: int, tokens: int = 200) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(300, VOCABULARY - 50) for _ in range(tokens)] for _ in range(count)]


def way(answer: httpx.Response) -> tuple[str, str]:
    """Return the prefill worker and why there was none."""
    assert answer.status_code == 200, answer.text
    headers = answer.headers
    return headers.get("x-kvmesh-prefill-worker", ""), headers.get("x-kvmesh-whole", "")


def texts(answer: httpx.Response) -> list[str]:
    return [one.get("text") or one["message"]["content"] for one in answer.json()["choices"]]


def test_a_split_request_is_answered_as_a_whole_one(fleet: NixlFleet) -> None:
    asked: list[tuple[str, dict[str, Any]]] = [
        (COMPLETION, {"prompt": one, "max_tokens": 12}) for one in prompts(1, 8)
    ]
    long = [text for text in corpus() if len(text) > 2500]
    for number, text in enumerate(long[:8]):
        messages = [{"role": "user", "content": f"{number} {text[1000:2500]}"}]
        asked.append((CHAT, {"messages": messages, "max_tokens": 12}))

    split = [fleet.post(path, **body) for path, body in asked]
    whole = [fleet.direct("p0", path, **body) for path, body in asked]

    assert {way(one) for one in split} == {("p0", "")}
    assert [texts(one) for one in split] == [texts(one) for one in whole]


@pytest.mark.parametrize(
    ("body", "answers", "why"),
    [
        ({"prompt": ["What everybody asks. " * 40, "And what not. " * 40]}, 2, "several prompts"),
        ({"prompt": prompts(2, 3)}, 3, "several prompts"),
        ({"prompt": prompts(3, 1)[0], "n": 2, "temperature": 0.7}, 2, "several answers"),
        ({"prompt": prompts(4, 1)[0], "echo": True}, 1, "echo"),
        ({"prompt": prompts(5, 1)[0], "echo": True, "logprobs": 1}, 1, "echo"),
        ({"prompt": prompts(6, 1)[0], "prompt_logprobs": 1}, 1, "prompt_logprobs"),
        ({"prompt": prompts(7, 1)}, 1, ""),
        ({"prompt": prompts(8, 1)[0], "logprobs": 2}, 1, ""),
        ({"prompt": prompts(9, 1)[0], "max_tokens": 1}, 1, ""),
        ({"prompt": prompts(10, 1)[0], "stop": ["zzzz"], "min_tokens": 4}, 1, ""),
    ],
)
def test_only_one_prompt_with_one_answer_is_split(
    fleet: NixlFleet, body: dict[str, Any], answers: int, why: str
) -> None:
    answer = fleet.post(COMPLETION, **({"max_tokens": 6} | body))

    assert way(answer) == ("" if why else "p0", why)
    assert len(answer.json()["choices"]) == answers
    for engine in fleet.engines.values():
        engine.process.check()


def test_many_at_once_are_all_answered(fleet: NixlFleet) -> None:
    bodies = [{"prompt": one, "max_tokens": 8} for one in prompts(11, 24)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda body: fleet.post(COMPLETION, **body), bodies))

    assert {way(one) for one in answers} == {("p0", "")}
    fleet.wait_until_idle("p0", "d0", "d1")


def test_clients_that_leave_take_their_blocks_with_them(fleet: NixlFleet) -> None:
    def leave(number: int) -> None:
        body = {"model": "tiny", "prompt": prompts(100 + number, 1, 700)[0], "max_tokens": 300}
        patience = httpx.Timeout(60.0, read=0.02 * number)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(fleet.url + COMPLETION, json=body, timeout=patience)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(leave, range(1, 13)))

    fleet.wait_until_idle("p0", "d0", "d1")
    assert way(fleet.post(COMPLETION, prompt=prompts(12, 1)[0], max_tokens=4)) == ("p0", "")


def test_a_killed_decode_worker_has_its_requests_prefilled_again(fleet: NixlFleet) -> None:
    bodies = [{"prompt": one, "max_tokens": 60} for one in prompts(13, 12)]
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(fleet.post, COMPLETION, **body) for body in bodies]
        asked[0].result()
        fleet.engines["d1"].kill()
        answers = [one.result() for one in asked]
    fleet.wait_for("p0", "d0")

    assert [one.status_code for one in answers] == [200] * len(bodies)
    assert way(fleet.post(COMPLETION, prompt=prompts(14, 1)[0], max_tokens=4)) == ("p0", "")
    fleet.wait_until_idle("p0", "d0")


def test_a_killed_prefill_worker_is_done_without_until_it_is_back(fleet: NixlFleet) -> None:
    bodies = [{"prompt": one, "max_tokens": 20} for one in prompts(15, 12, 600)]
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(fleet.post, COMPLETION, **body) for body in bodies]
        asked[0].result()
        fleet.engines["p0"].kill()
        answers = [one.result() for one in asked]
    alone = fleet.post(COMPLETION, prompt=prompts(16, 1)[0], max_tokens=4)
    fleet.engines["p0"].start()
    fleet.engines["p0"].wait()
    fleet.wait_for("p0", "d0")
    again = fleet.post(COMPLETION, prompt=prompts(17, 1)[0], max_tokens=4)

    assert [one.status_code for one in answers] == [200] * len(bodies)
    assert way(alone)[0] == ""
    assert way(again) == ("p0", "")
