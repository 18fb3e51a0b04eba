"""Child processes that are kept alive: started, watched, restarted with back-off, stopped."""

import asyncio
import contextlib
import os
import re
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from kvmesh.app.process.fork_server import ForkServer
from kvmesh.bounds import listed
from kvmesh.errors import ConfigError, TransportError
from kvmesh.observe import get_logger
from kvmesh.tasks import end_tasks, supervise

RESTART_DELAY_S = 0.2
RESTART_DELAY_MAX_S = 10.0
STABLE_S = 10.0
TERMINATE_S = 10.0
POLL_S = 0.1
OWN_WORDS = "kvmesh: "
"""How the line begins with which a kvmesh command ends in error."""

TOLD_EACH_S = 5.0
MOST_IDLE_STEPS = 600
"""A minute on a machine that has time for it."""
MOST_SAID = 10_000
_DIGITS = re.compile(r"\d+")
"""Times and counts, by which a line that is said again differs."""

MOST_LINES = 20
MOST_BYTES = 64 * 1024


class ChildSpec(msgspec.Struct, frozen=True):
    """One child: its name, its kvmesh command line, and the URL that answers 200 when it serves."""

    name: str
    args: list[str]
    ready_url: str = ""


class RestartDelay:
    """How long to wait before each restart: twice as long each time, until one ran for long."""

    def __init__(self) -> None:
        self._next_s = RESTART_DELAY_S

    def after(self, ran_s: float) -> float:
        """Return the wait, in seconds, after a process that ran for `ran_s`."""
        delay_s = RESTART_DELAY_S if ran_s > STABLE_S else self._next_s
        self._next_s = min(delay_s * 2, RESTART_DELAY_MAX_S)
        return delay_s


class ChildProcess(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int:
        """Return its id."""
        ...

    @property
    def returncode(self) -> int | None:
        """Return the code it ended with, negative for a signal; None while it runs."""
        ...

    async def wait(self) -> int:
        """Return the code it ended with."""
        ...

    def terminate(self) -> None:
        """Ask it to end."""
        ...

    def kill(self) -> None:
        """End it."""
        ...


class Child:
    """One supervised process, forked by `forks` while that serves, else started as a program. Its
    output goes to `<log_dir>/<name>.log`, without a folder to where this process's goes. It is
    killed when it has not ended `terminate_s` after it was asked to.

    Until it is `proven` to start, an exit with a code of its own is final: `refused` is that code,
    and its words tell why. A wrong setting would be as wrong at the next start.
    """

    def __init__(
        self,
        spec: ChildSpec,
        environment: Mapping[str, str],
        log_dir: Path | None,
        *,
        terminate_s: float = TERMINATE_S,
        forks: ForkServer | None = None,
    ) -> None:
        self.spec = spec
        self.restarts = 0
        self.proven = False
        self.refused = 0
        self.process: ChildProcess | None = None
        self._forks = forks
        self._argv = [sys.executable, "-m", "kvmesh", *spec.args]
        self._environment = environment
        self._terminate_s = terminate_s
        self._log_path = None if log_dir is None else log_dir / f"{spec.name}.log"
        self._log_start = 0
        self._watcher: asyncio.Task[None] | None = None
        self._log = get_logger(child=spec.name)

    async def start(self) -> None:
        """Start the process and its watcher."""
        await self._spawn()
        self._watcher = supervise("watch a child", self._watch)

    async def _spawn(self) -> None:
        with contextlib.ExitStack() as files:
            log_file = None
            if self._log_path is not None:
                log_file = files.enter_context(self._log_path.open("ab"))
                self._log_start = log_file.tell()
            if self._forks is not None and self._forks.serves:
                self.process = await self._forks.spawn(
                    self.spec.args, self._environment, self._log_path
                )
                return
            self.process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=DEVNULL,
                stdout=log_file,
                stderr=log_file,
                env=dict(self._environment),
                start_new_session=True,
            )

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        delay = RestartDelay()
        while self.process is not None:
            started = loop.time()
            code = await self.process.wait()
            if code > 0 and not self.proven:
                self.refused = code
                return
            delay_s = delay.after(loop.time() - started)
            self._log.warning(
                "child died, restarting",
                code=code,
                after_s=delay_s,
                log=str(self._log_path),
            )
            await asyncio.sleep(delay_s)
            await self._respawn(delay)

    async def _respawn(self, delay: RestartDelay) -> None:
        """Start it anew however often that takes: memory, processes or a log's folder may lack."""
        said = ""
        while True:
            try:
                await self._spawn()
            except OSError as error:
                if str(error) != said:
                    said = str(error)
                    self._log.error("child cannot be started, trying again", error=said)
                await asyncio.sleep(delay.after(0.0))
            else:
                self.restarts += 1
                return

    async def stop(self) -> None:
        """Ask the process to end, kill it when it does not in time."""
        if self._watcher is not None:
            await end_tasks(self._watcher)
        if self.process is None or self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), self._terminate_s)
        except TimeoutError:
            self._log.warning("child did not stop, killing it", after_s=self._terminate_s)
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()

    async def wait_refused(self) -> None:
        """Return when it has refused to start."""
        if self._watcher is not None:
            await asyncio.wait({self._watcher})

    def last_words(self) -> str:
        """Return what it said last, for an error message: the error it ended with, if it names one,
        else the end of its log since it was started.
        """
        if self._log_path is None:
            return ""
        try:
            with self._log_path.open("rb") as log_file:
                end = log_file.seek(0, os.SEEK_END)
                log_file.seek(max(self._log_start, end - MOST_BYTES))
                text = log_file.read().decode("utf-8", "replace").rstrip()
        except OSError as error:
            return str(error)
        before, named, words = text.rpartition(OWN_WORDS)
        if named and (not before or before.endswith("\n")):
            return words
        return "\n".join(text.splitlines()[-MOST_LINES:])


class Progress:
    """Notes what moves while processes start: that one serves, or says in its log what it has not
    said before. `idle_steps` counts the steps since, not seconds: on a busy machine they take
    longer, for the processes as for this one.
    """

    def __init__(self) -> None:
        self.idle_steps = 0
        self._serving = 0
        self._said: set[str] = set()

    def step(self, waiting: Sequence[Child], serving: int) -> None:
        """Look at the processes once more."""
        before = len(self._said), self._serving
        for child in waiting:
            for line in child.last_words().splitlines():
                if len(self._said) < MOST_SAID:
                    self._said.add(f"{child.spec.name} {_DIGITS.sub('', line)}")
        self._serving = serving
        self.idle_steps = self.idle_steps + 1 if before == (len(self._said), serving) else 0


async def wait_for_ready(
    children: Sequence[Child],
    idle_steps: int = MOST_IDLE_STEPS,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Return when every child with a `ready_url` answers it with 200, however long that takes while
    something moves; `say` is told each few seconds who is waited for.

    Raises `TransportError` naming a child that does not after `idle_steps` of a tenth of a second
    in which nothing moved, with the end of its log, and `ConfigError` with the words of one that
    refused to start. From then on a child that ends is started again, whatever it ends with.
    """
    loop, progress = asyncio.get_running_loop(), Progress()
    told_s = loop.time()
    waiting: list[Child] = [child for child in children if child.spec.ready_url]
    while waiting:
        ready = await asyncio.gather(*(answers_ok(child.spec.ready_url) for child in waiting))
        waiting = [child for child, is_ready in zip(waiting, ready, strict=True) if not is_ready]
        _raise_refusals(children)
        progress.step(waiting, len(children) - len(waiting))
        if waiting and progress.idle_steps >= idle_steps:
            late = waiting[0]
            raise TransportError(
                f"{late.spec.name} is not ready at {late.spec.ready_url}, and nothing moved in"
                f" {idle_steps * POLL_S:.0f} s; the end of its log:\n{late.last_words()}"
            )
        if waiting and loop.time() - told_s > TOLD_EACH_S:
            told_s = loop.time()
            say(f"waiting for {listed([child.spec.name for child in waiting])} …")
        await asyncio.sleep(POLL_S if waiting else 0)
    _raise_refusals(children)
    for child in children:
        child.proven = True


def _raise_refusals(children: Sequence[Child]) -> None:
    for child in children:
        if child.refused:
            raise ConfigError(f"{child.spec.name} cannot start: {child.last_words()}")


async def answers_ok(url: str) -> bool:
    """Return whether a GET of `url` (plain http) is answered 200 within a second."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(1.0):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            with contextlib.closing(writer):
                request = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
                writer.write(f"{request}Connection: close\r\n\r\n".encode())
                return (await reader.readline()).split()[1:2] == [b"200"]
    except (OSError, TimeoutError):
        return False
