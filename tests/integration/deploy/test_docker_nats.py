"""What only a container can show of NATS; `tests/contract` runs in it, too."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.contract.conftest import NatsBackend, Recorder
from tests.contract.journal_writing import append_all, numbered
from tests.nats_container import url_in

pytestmark = [pytest.mark.docker, pytest.mark.integration]


@pytest.fixture
async def backend(nats_container: Any) -> AsyncIterator[NatsBackend]:
    async with contextlib.AsyncExitStack() as stack:
        yield NatsBackend(url_in(nats_container), stack)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_the_server_runs_as_nobody_special(nats_container: Any) -> None:
    user = nats_container.get_wrapped_container().attrs["Config"]["User"]

    assert user == "65532:65532"


async def test_a_tail_survives_a_paused_container(
    backend: NatsBackend, nats_container: Any, recorder: Recorder, eventually: Any
) -> None:
    journal = await backend.journal()
    tail = await journal.tail(0, "", recorder)
    await append_all(journal, backend.prefix, numbered(5))
    await eventually(lambda: len(recorder.records) == 5)

    docker = nats_container.get_wrapped_container()
    docker.pause()
    docker.unpause()
    await append_all(journal, backend.prefix, numbered(5, 5))
    await eventually(lambda: len(recorder.records) == 10, timeout_s=60)
    await tail.close()

    assert recorder.payloads == numbered(10)
