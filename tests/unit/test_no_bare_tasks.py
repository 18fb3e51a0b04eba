"""Long-lived tasks and timers are made by `kvmesh.tasks`, so that none dies in silence."""

import re
from typing import Final

from benchmarks.house.tree import PACKAGES, find_files

BARE: Final = re.compile(r"\b(create_task|ensure_future|call_later|call_at|add_reader|Thread)\(")

RULE: Final = {
    "tasks.py": "the rule itself",
    "app/process/running.py": "waits for each task it makes and raises what it raised",
    "app/process/aio.py": "the actors' timers: a ring only queues a message",
    "app/process/fork_server.py": "the reader, whose callback is guarded",
    "app/front/span_export.py": "a thread a batch, awaited for so long; nobody waits at the end",
    "app/picker/addresses.py": "a look-up: awaited, and reported when it is done",
    "app/picker/unwatched.py": "one timer, guarded, set anew whatever a request in it raises",
    "app/serve/stream_sharing.py": "one timer, guarded, set anew whatever telling raises",
    "app/serve/admission.py": "the queue's timer, set anew whatever a request in it raises",
    "transport/zmq/socket.py": "the reader, whose callback is guarded",
    "transport/zmq/subscriber.py": "one deadline, set anew whatever its callback raised",
    "transport/nats/jetstream/pull.py": "looks at heartbeats; ends by telling its listener",
    "transport/nats/link/client.py": "a flush, awaited; one that is late ends by itself",
    "transport/nats/link/connection.py": "one attempt to connect, awaited",
    "transport/nats/link/troubles.py": "ends one warning",
    "transport/grpc/health.py": "one timer, guarded, set anew whatever a watcher raises",
    "transport/http/wire/deadlines.py": "the wheel: turns on whatever an item raises",
    "mocker/engine.py": "the engine's step, guarded: a fault ends the process",
}
SCOPED: Final = {
    "app/mesh/static_workers.py": "a task group, under a supervised task",
    "app/members/prober.py": "a task group, under a supervised task",
    "app/meta/site_part.py": "a task group, under a supervised task",
    "conformance/case_crowds.py": "as long as one case, which awaits or cancels it",
    "conformance/exchange.py": "what a call sends while its answers are read; cancelled with it",
    "conformance/gateway_client.py": "what a request sends while its answer is read",
    "conformance/gateway_deaths.py": "as long as one case, which awaits it",
    "conformance/link.py": "a call's reader, which tells its end to whoever waits for answers",
    "demo/play.py": "a task group: as long as one pass",
    "mocker/faults.py": "the end of the process",
    "app/process/processes.py": "waits for each task it makes",
    "app/ops/up.py": "waits for each task it makes and raises what it raised",
    "replay/command.py": "as long as one command",
    "replay/load.py": "a task group: as long as one replay",
    "replay/progress.py": "as long as one replay",
}
REQUESTS: Final = {
    "app/picker/leaving.py",
    "app/views/dashboard_page.py",
    "mocker/reply.py",
    "transport/http/server/half_close.py",
    "transport/http/server/scope.py",
    "transport/http/upstream/client.py",
}
"""Timers and tasks of one request: they are the request's to end."""


def bare_modules() -> set[str]:
    return {
        path.relative_to(package).as_posix()
        for package in PACKAGES
        for path in find_files(package)
        if any(
            BARE.search(line) and not line.lstrip().startswith("def ")
            for line in path.read_text(encoding="utf-8").splitlines()
        )
    }


def test_no_module_makes_tasks_or_timers_of_its_own() -> None:
    unknown = bare_modules() - RULE.keys() - SCOPED.keys() - REQUESTS

    assert not unknown, (
        f"{sorted(unknown)}: use kvmesh.tasks (supervise, keep_running, guarded, Jobs), or the "
        "request's scope for what ends with a request"
    )


def test_the_list_of_exceptions_holds_nothing_that_is_gone() -> None:
    assert (RULE.keys() | SCOPED.keys()) <= bare_modules()
