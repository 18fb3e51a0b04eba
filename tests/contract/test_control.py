"""What every Control promises."""

import asyncio
from typing import Any

import pytest

from kvmesh.actors.messages import Drain, Dump, Status
from kvmesh.errors import CodecError, ConfigError, TransportError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Worker:
    """Who answers commands: writes down what it was told."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.go_on = asyncio.Event()

    async def drain(self, command: Drain) -> bool:
        self.told.append(command)
        await self.go_on.wait()
        self.told.append("drained")
        return True

    async def status(self, command: Status) -> dict[str, int]:
        self.told.append(command)
        return {"open": 3}

    async def dump(self, command: Dump) -> None:
        raise ConfigError(f"no dump: {command.reason}")


async def serving(backend: Any) -> tuple[Worker, Any, str]:
    worker, subject = Worker(), f"{backend.prefix}.ctl.code.w1"
    worker.go_on.set()
    handlers = {Drain: worker.drain, Status: worker.status, Dump: worker.dump}
    control = await (await backend.plane()).control((subject,), handlers)
    return worker, control, subject


async def asker(backend: Any) -> Any:
    return await (await backend.plane()).control()


async def test_a_command_is_carried_out_and_its_result_is_the_answer(backend: Any) -> None:
    worker, control, subject = await serving(backend)
    asking = await asker(backend)

    found = await asking.ask(subject, Status(), dict[str, int])
    await asking.close()
    await control.close()

    assert found == {"open": 3}
    assert worker.told == [Status()]


async def test_a_refusal_tells_the_asker_why(backend: Any) -> None:
    _, control, subject = await serving(backend)
    asking = await asker(backend)

    with pytest.raises(TransportError, match="refused: no dump: no room"):
        await asking.ask(subject, Dump(reason="no room"), bool)
    await asking.close()
    await control.close()


async def test_nobody_there_is_an_error_at_once(backend: Any) -> None:
    _, control, subject = await serving(backend)
    asking = await asker(backend)
    await control.close()
    await control.close()

    with pytest.raises(TransportError, match="no responders"):
        await asking.ask(subject, Status(), dict[str, int])
    await asking.close()


async def test_an_answer_of_another_type_is_a_codec_error(backend: Any) -> None:
    _, control, subject = await serving(backend)
    asking = await asker(backend)

    with pytest.raises(CodecError, match="unreadable answer"):
        await asking.ask(subject, Status(), str)
    await asking.close()
    await control.close()


async def test_commands_run_in_order_and_a_late_one_is_done_all_the_same(
    backend: Any,
) -> None:
    worker, control, subject = await serving(backend)
    asking = await asker(backend)
    worker.go_on.clear()

    with pytest.raises(TransportError, match="no answer in"):
        await asking.ask(subject, Drain(), bool, timeout_s=0.2)
    second = asyncio.create_task(asking.ask(subject, Status(), dict[str, int], timeout_s=10))
    worker.go_on.set()
    await second
    await asking.close()
    await control.close()

    assert worker.told == [Drain(), "drained", Status()]
