"""A whole mesh in real processes, as `kvmesh up` starts it, used by real clients."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import NotFoundError, OpenAI

from kvmesh.actors.registry import ENGINE_HANGS

pytestmark = pytest.mark.integration

ENGINES, ROUTERS = 4, 4
MODEL = "Qwen/Qwen3-0.6B"


def free_base() -> int:
    """Return a port P such that all ports a mesh takes from P on are free."""
    rng = random.Random(os.getpid())
    while True:
        base = rng.randrange(12_000, 30_000, 500)
        offsets = [*range(ROUTERS + 1), *(k + e for k in (100, 200, 300) for e in range(ENGINES))]
        with contextlib.ExitStack() as stack:
            try:
                for offset in offsets:
                    sock = stack.enter_context(socket.socket())
                    sock.bind(("127.0.0.1", base + offset))
            except OSError:
                continue
            return base


def eventually(check: Callable[[], bool], what: str, *, within_s: float = 90.0) -> None:
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.05)


class RunningMesh:
    def __init__(self, base: int, log: Path) -> None:
        self.base = base
        self.url = f"http://127.0.0.1:{base}"
        self.log = log
        self.http = httpx.Client(timeout=60)

    def router_url(self, number: int) -> str:
        return f"http://127.0.0.1:{self.base + 1 + number}"

    def status(self, number: int) -> dict[str, Any]:
        status: dict[str, Any] = self.http.get(f"{self.router_url(number)}/v1/status").json()
        return status

    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0)

    def chat(
        self, text: str, *, url: str = "", headers: dict[str, str] | None = None, tokens: int = 8
    ) -> httpx.Response:
        return self.http.post(
            f"{url or self.url}/v1/chat/completions",
            json={
                "model": "mock",
                "max_tokens": tokens,
                "messages": [{"role": "user", "content": text}],
            },
            headers=headers or {},
        )

    def router_pid(self, number: int) -> int:
        """Return the process of one of this mesh's routers, known by its port."""
        return self._pid(f"--http-port {self.base + 1 + number} ", "-m kvmesh")

    def nats_pid(self) -> int:
        """Return the process of this mesh's NATS server, known by its directory."""
        return self._pid(f"-sd {self.log.parent / 'nats'} ", "nats-server")

    def _pid(self, *needles: str) -> int:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    line = b" ".join(words).decode()
                    if all(needle in line for needle in needles):
                        return int(entry.name)
        raise AssertionError(f"no process with {needles!r}")


@contextlib.contextmanager
def running_mesh(directory: Path, engines: int, replicas: int) -> Iterator[RunningMesh]:
    """Run `kvmesh up` with two buckets."""
    base = free_base()
    log_path = directory / "up.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "kvmesh", "up"),
                *("--http-port", str(base), "--engines", str(engines)),
                *("--buckets", "chat,code", "--replicas", str(replicas)),
                *("--data-dir", str(directory), "--speedup-ratio", "10"),
                *("--served-model-name", "mock", "--served-model-name", MODEL),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | {"KVMESH_SESSION_AFFINITY": "hard"},
        )
        running = RunningMesh(base, log_path)
        try:
            eventually(
                lambda: process.poll() is not None or "kvmesh is up" in log_path.read_text(),
                "the mesh is up",
                within_s=180.0,
            )
            assert process.poll() is None, log_path.read_text()
            yield running
        finally:
            running.http.close()
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=120)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    with running_mesh(tmp_path_factory.mktemp("mesh"), ENGINES, ROUTERS // 2) as mesh:
        yield mesh


@pytest.fixture(autouse=True)
def whole(mesh: RunningMesh) -> None:
    """Begin with every router at work: a test that failed may have left one killed."""

    def serving() -> bool:
        with contextlib.suppress(httpx.HTTPError, KeyError):
            replicas = mesh.http.get(f"{mesh.url}/v1/status").json()["replicas"]
            usable = [one["member"] for one in replicas if one["usable"]]
            urls = [f"{mesh.router_url(number)}/ready" for number in range(ROUTERS)]
            return len(usable) == ROUTERS and all(mesh.http.get(url).is_success for url in urls)
        return False

    eventually(serving, "all routers serve")


def test_the_openai_client_streams_a_chat_completion(mesh: RunningMesh) -> None:
    with mesh.client() as client:
        chunks = list(
            client.chat.completions.create(
                model="mock",
                messages=[{"role": "user", "content": "Say something."}],
                max_tokens=12,
                stream=True,
                stream_options={"include_usage": True},
            )
        )

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    usage = chunks[-1].usage
    assert text
    assert usage is not None
    assert usage.completion_tokens == 12


def test_the_engines_serve_the_model_names_they_were_given(mesh: RunningMesh) -> None:
    with mesh.client() as client:
        served = {model.id for model in client.models.list()}
        answers = [
            client.chat.completions.create(
                model=name, messages=[{"role": "user", "content": "hello"}], max_tokens=4
            )
            for name in ("mock", MODEL)
        ]
        with pytest.raises(NotFoundError):
            client.chat.completions.create(
                model="Qwen/Qwen3", messages=[{"role": "user", "content": "hello"}]
            )

    assert served == {"mock", MODEL}
    assert [answer.model for answer in answers] == ["mock", "mock"]


def test_a_shared_prefix_is_found_through_either_replica(mesh: RunningMesh) -> None:
    context = "A long shared context, word after word. " * 60
    first = mesh.chat(context + "First question?", url=mesh.router_url(0))
    assert first.status_code == 200
    worker = first.headers["x-kvmesh-worker"]

    def known_to(number: int) -> bool:
        answer = mesh.http.post(
            f"{mesh.router_url(number)}/v1/route",
            json={"messages": [{"role": "user", "content": context + "Other?"}]},
        ).json()
        return bool(answer["worker"] == worker and answer["overlap_blocks"] > 100)

    for number in (0, 1):
        eventually(partial(known_to, number), f"replica {number} knows the prefix")
        answer = mesh.chat(context + f"Question {number}?", url=mesh.router_url(number))
        assert answer.headers["x-kvmesh-worker"] == worker
        assert int(answer.headers["x-kvmesh-overlap-blocks"]) > 100
        assert answer.headers["x-kvmesh-router"] == f"chat-{number}"
        assert answer.headers["x-kvmesh-bucket"] == "chat"
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 1600


def test_the_front_door_obeys_a_named_bucket_and_refuses_an_unknown_one(mesh: RunningMesh) -> None:
    named = mesh.chat("hello", headers={"x-kvmesh-bucket": "code"})
    unknown = mesh.chat("hello", headers={"x-kvmesh-bucket": "poetry"})

    assert named.headers["x-kvmesh-bucket"] == "code"
    assert unknown.status_code == 404
    assert "poetry" in unknown.json()["error"]["message"]


def test_different_prompts_reach_all_buckets_and_replicas(mesh: RunningMesh) -> None:
    def reached() -> bool:
        routers = {mesh.chat(f"hello {n}").headers["x-kvmesh-router"] for n in range(16)}
        return routers == {"chat-0", "chat-1", "code-0", "code-1"}

    # A replica that is not ready for a moment is left out for as long.
    eventually(reached, "sixteen prompts reach all four replicas")


def test_a_dry_run_explains_every_worker(mesh: RunningMesh) -> None:
    answer = mesh.http.post(
        f"{mesh.router_url(0)}/v1/route", json={"messages": [{"role": "user", "content": "x" * 99}]}
    ).json()

    assert {one["worker"] for one in answer["candidates"]} == {"worker-0", "worker-2"}
    assert answer["worker"] in {"worker-0", "worker-2"}
    assert answer["total_blocks"] > 0
    for candidate in answer["candidates"]:
        assert candidate["formula"].startswith(f"Formula for {candidate['worker']}: ")


def test_how_far_events_are_believed_shows_in_headers_metrics_and_readiness(
    mesh: RunningMesh,
) -> None:
    def everybody_is_known() -> bool:
        return "warnings" not in mesh.http.get(f"{mesh.router_url(0)}/ready").json()

    eventually(everybody_is_known, "no worker is in doubt")
    answer = mesh.chat("How sure are you?", url=mesh.router_url(0))
    metrics = mesh.http.get(f"{mesh.router_url(0)}/metrics").text

    assert answer.headers["x-kvmesh-trust"] == "exact"
    for worker in ("worker-0", "worker-2"):
        assert f'kvmesh_worker_trust{{trust="exact",worker="{worker}"}} 1.0' in metrics


def test_an_engine_that_fails_its_health_checks_is_said_to_hang_not_to_drain(
    mesh: RunningMesh,
) -> None:
    sick = mesh.status(0)["workers"][0]

    def why_not() -> str | None:
        workers = {one["worker"]: one for one in mesh.status(0)["workers"]}
        found: str | None = workers[sick["worker"]]["why_not"]
        return found

    mesh.http.post(f"{sick['url']}/kvmesh/faults", json={"fail_health": True})
    try:
        eventually(lambda: why_not() == ENGINE_HANGS, "the router says that the engine hangs")
        rows = mesh.http.get(f"{mesh.router_url(0)}/v1/overview?limit=0").json()["workers"]
        shown = {one["worker"]: one["why_not"] for one in rows}
        answer = mesh.chat("Who is there?", url=mesh.router_url(0))
    finally:
        mesh.http.post(f"{sick['url']}/kvmesh/faults", json={})
    eventually(lambda: why_not() is None, "the engine serves again")

    assert shown[sick["worker"]] == ENGINE_HANGS
    assert answer.headers["x-kvmesh-worker"] != sick["worker"]


def test_replicas_at_the_same_sequence_hold_the_same_index(mesh: RunningMesh) -> None:
    for number in range(6):
        mesh.chat("Something to cache, again and again. " * 20 + str(number))

    def agree() -> bool:
        first, second = mesh.status(0)["mesh"], mesh.status(1)["mesh"]
        return bool(
            first["applied_sequence"] == second["applied_sequence"] > 0
            and first["digest"] == second["digest"]
            and first["blocks"] == second["blocks"]
        )

    eventually(agree, "both replicas agree")


def test_a_client_that_leaves_cancels_its_request_at_the_engine(mesh: RunningMesh) -> None:
    def reported(worker: str, *names: str) -> float:
        number = int(worker.removeprefix("worker-"))
        page = mesh.http.get(f"http://127.0.0.1:{mesh.base + 100 + number}/metrics").text
        lines = [line for line in page.splitlines() if line.startswith(names)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def running(worker: str) -> float:
        return reported(worker, "vllm:num_requests_running{", "vllm:num_requests_waiting{")

    def aborted(worker: str) -> float:
        return reported(worker, 'vllm:request_success_total{engine="0",finished_reason="abort"')

    body = {
        "model": "mock",
        "stream": True,
        "max_tokens": 20_000,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "never ending"}],
    }
    with mesh.http.stream("POST", f"{mesh.url}/v1/chat/completions", json=body) as answer:
        worker = answer.headers["x-kvmesh-worker"]
        chunks = answer.iter_raw()  # kept: its end would close the connection
        next(chunks)
        eventually(lambda: running(worker) == 1, "the engine runs it")
        before = aborted(worker)

    eventually(lambda: running(worker) == 0, "the engine dropped the request")
    assert aborted(worker) == before + 1
    router = ["chat-0", "chat-1", "code-0", "code-1"].index(answer.headers["x-kvmesh-router"])
    eventually(
        lambda: all(one["active_requests"] == 0 for one in mesh.status(router)["workers"]),
        "the booking is released",
    )


def test_a_session_keeps_its_worker_through_every_replica_and_a_restart(mesh: RunningMesh) -> None:
    session = {"x-kvmesh-session": "one conversation"}
    first = mesh.chat("How does it begin?", url=mesh.router_url(0), headers=session)
    home = first.headers["x-kvmesh-worker"]

    def stays(number: int, text: str) -> bool:
        answer = mesh.chat(text, url=mesh.router_url(number), headers=session)
        return answer.status_code == 200 and answer.headers["x-kvmesh-worker"] == home

    eventually(lambda: mesh.status(1)["sessions"]["sessions"] > 0, "the other replica knows it")
    assert all(stays(number % 2, f"What next, and {number}?") for number in range(8))
    os.kill(mesh.router_pid(0), signal.SIGKILL)

    def is_back() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return mesh.http.get(f"{mesh.router_url(0)}/ready").status_code == 200
        return False

    eventually(is_back, "the killed router is back")
    assert all(stays(0, f"And now, {number}?") for number in range(8))


def test_killing_a_router_loses_no_request_and_it_comes_back_warm(mesh: RunningMesh) -> None:
    context = "What the killed router knew before. " * 60
    known = mesh.chat(context, url=mesh.router_url(0)).headers["x-kvmesh-worker"]
    pid = mesh.router_pid(0)

    os.kill(pid, signal.SIGKILL)
    answers = [mesh.chat(f"after the kill {number}") for number in range(40)]

    assert [answer.status_code for answer in answers] == [200] * 40

    def warm() -> bool:
        with contextlib.suppress(httpx.HTTPError, json.JSONDecodeError, KeyError):
            if mesh.http.get(f"{mesh.router_url(0)}/ready").status_code != 200:
                return False
            answer = mesh.http.post(
                f"{mesh.router_url(0)}/v1/route",
                json={"messages": [{"role": "user", "content": context}]},
            ).json()
            return bool(answer["worker"] == known and answer["overlap_blocks"] > 100)
        return False

    eventually(warm, "the router is back and warm")
    assert mesh.router_pid(0) != pid


def test_restarting_the_routers_one_by_one_loses_no_request(mesh: RunningMesh) -> None:
    over = threading.Event()
    failed: list[str] = []

    def converse(name: int) -> int:
        number = 0
        with httpx.Client(timeout=60.0) as http:
            while not over.is_set():
                number += 1
                text = f"Client {name} goes on and on. " * 40 + str(number)
                body = {
                    "model": "mock",
                    "max_tokens": 8,
                    "stream": number % 2 == 0,
                    "messages": [{"role": "user", "content": text}],
                }
                url, headers = f"{mesh.url}/v1/chat/completions", {"x-kvmesh-bucket": "chat"}
                answer = http.post(url, json=body, headers=headers)
                whole = "data: [DONE]" in answer.text or number % 2
                if answer.status_code != 200 or not whole:
                    failed.append(f"{answer.status_code}: {answer.text[-300:]}")
        return number

    def replica(number: int) -> dict[str, Any]:
        members = mesh.http.get(f"{mesh.url}/v1/status").json()["replicas"]
        found = [one for one in members if one["member"] == f"chat/chat-{number}"]
        return found[0] if found else {"epoch": 0, "usable": False}

    def serves(number: int, epoch: int) -> bool:
        reported = replica(number)
        return bool(reported["usable"] and reported["epoch"] >= epoch)

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(converse, name) for name in range(4)]
        try:
            for number in (0, 1):
                eventually(partial(serves, 1 - number, 0), "the other serves")
                before = replica(number)["epoch"]
                os.kill(mesh.router_pid(number), signal.SIGTERM)
                back = partial(serves, number, before + 1)
                eventually(back, f"chat-{number} is back")
        finally:
            over.set()
        requests = [client.result() for client in clients]

    assert failed == []
    assert min(requests) > 5


def test_a_worker_named_without_its_bucket_gets_the_request(mesh: RunningMesh) -> None:
    def served(number: int) -> set[tuple[int, str | None]]:
        wish = {"x-kvmesh-worker-id": f"worker-{number}"}
        answers = [mesh.chat("For one of you.", headers=wish) for _ in range(4)]
        wish = {"x-kvmesh-allowed-workers": f"nobody, worker-{number}"}
        answers.append(mesh.chat("For one of two.", headers=wish))
        worker = {"worker": f"worker-{number}"}
        body = {"model": "mock", "max_tokens": 2, "prompt": "x", "kvmesh": worker}
        answers += [mesh.http.post(f"{mesh.url}/v1/completions", json=body) for _ in range(2)]
        return {(one.status_code, one.headers.get("x-kvmesh-worker")) for one in answers}

    assert served(0) == {(200, "worker-0")}
    assert served(1) == {(200, "worker-1")}


def test_a_worker_that_does_not_exist_is_no_overload(mesh: RunningMesh) -> None:
    def ask() -> httpx.Response:
        return mesh.chat("For nobody.", headers={"x-kvmesh-worker-id": "nobody"})

    eventually(lambda: ask().status_code == 404, "the worker is known not to exist")
    error = ask().json()["error"]

    assert error["code"] == "worker_not_found"
    assert "the worker 'nobody' does not exist; known are: worker-" in error["message"]


@pytest.mark.parametrize("name", ["chat.py", "custom_router.py"])
def test_an_example_runs_against_a_mesh_of_two_buckets(mesh: RunningMesh, name: str) -> None:
    example = Path(__file__).parents[3] / "examples" / name

    done = subprocess.run(
        [sys.executable, str(example), mesh.url],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr


def test_requests_go_on_for_as_long_as_nats_hangs_and_say_so(mesh: RunningMesh) -> None:
    doors = [mesh.url, mesh.router_url(0), mesh.router_url(2)]

    def reported(url: str) -> dict[str, Any]:
        answer: dict[str, Any] = mesh.http.get(f"{url}/ready").json()
        return answer

    def warned(url: str) -> bool:
        return any(
            "nothing is heard over NATS" in line for line in reported(url).get("warnings", ())
        )

    def hears(url: str) -> bool:
        return not warned(url)

    os.kill(pid := mesh.nats_pid(), signal.SIGSTOP)
    try:
        for door in doors:
            eventually(partial(warned, door), f"{door} says that NATS is silent")
        silent_s = time.monotonic()
        while time.monotonic() - silent_s < 3.0:
            answers = [mesh.chat(f"meanwhile {number}") for number in range(4)]
            assert [answer.status_code for answer in answers] == [200] * 4
            assert all(reported(door)["ready"] for door in doors)
    finally:
        os.kill(pid, signal.SIGCONT)

    for door in doors:
        eventually(partial(hears, door), f"{door} hears again")
    assert all(reported(door)["ready"] for door in doors)


def test_a_killed_nats_server_is_started_again_and_events_go_on(mesh: RunningMesh) -> None:
    pid = mesh.nats_pid()

    os.kill(pid, signal.SIGKILL)
    answers = [mesh.chat(f"without NATS {number}") for number in range(20)]

    assert [answer.status_code for answer in answers] == [200] * 20
    before = mesh.status(0)["mesh"]["applied_sequence"]
    number = iter(range(10_000))

    def events_arrive() -> bool:
        mesh.chat(f"Something new to remember, {next(number)}. " * 9, url=mesh.router_url(0))
        return bool(mesh.status(0)["mesh"]["applied_sequence"] > before + 3)

    eventually(events_arrive, "events are stored and read again")
    assert mesh.nats_pid() != pid


def snapshot_tool(mesh: RunningMesh, *arguments: str) -> subprocess.CompletedProcess[str]:
    nats_url = re.search(r"nats://[0-9.:]+", mesh.log.read_text())
    assert nats_url is not None
    return subprocess.run(
        [*(sys.executable, "-m", "kvmesh", "snapshot"), *arguments, "--nats-url", nats_url[0]],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_restarted_router_starts_from_the_snapshot(mesh: RunningMesh) -> None:
    mesh.chat(f"Worth remembering in {uuid.uuid4()}. " * 50, url=mesh.router_url(3))
    taken = snapshot_tool(mesh, "take", "code")
    again = snapshot_tool(mesh, "take", "code")
    listed = snapshot_tool(mesh, "list", "code")
    verified = snapshot_tool(mesh, "verify", "code")
    inspected = snapshot_tool(mesh, "inspect", "code")
    unknown = snapshot_tool(mesh, "inspect", "code", "idx-none")
    empty = snapshot_tool(mesh, "verify", "nothing")

    assert taken.returncode == 0, taken.stderr
    assert again.returncode == 0, again.stderr
    name = taken.stdout.partition(":")[0]
    assert f"{name} " in listed.stdout
    assert "newest" in listed.stdout
    assert verified.stdout.startswith("OK ")
    assert "worker-1" in inspected.stdout
    assert (unknown.returncode, empty.returncode) == (2, 1)
    assert "idx-none" in unknown.stderr

    os.kill(mesh.router_pid(3), signal.SIGKILL)

    def loaded() -> bool:
        with contextlib.suppress(httpx.HTTPError, KeyError):
            now, sibling = mesh.status(3)["mesh"], mesh.status(2)["mesh"]
            same = all(now[key] == sibling[key] for key in ("applied_sequence", "digest"))
            return bool(now["loader"]["loaded"] == 1 and same)
        return False

    eventually(loaded, "the router loaded the snapshot")
