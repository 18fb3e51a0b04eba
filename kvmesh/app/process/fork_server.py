"""A process that has loaded what its children need, and forks them: they share its memory.

A kvmesh process at rest is mostly what it has loaded, 30 to 45 MiB. Forked from one that has loaded
it, and frozen for the collector, it has half of that for itself, and is there in 0.1 s.
"""

import asyncio
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from kvmesh.tasks import guarded

MOST_BYTES: Final = 1 << 16
GONE: Final = "the fork server is gone"
_SET_NAME: Final = 15
_ARGUMENTS: Final = 45
"""Where the command line lies, then the environment: the first of four fields of /proc/self/stat
behind the name.
"""


Prepare = Callable[[Sequence[str]], Callable[[], object]]
"""Reads a command line and returns what runs it. Whatever is wrong with it is said by that."""


class Birth(msgspec.Struct, frozen=True):
    """A child wanted: its kvmesh command line, environment, and the file of its output."""

    number: int
    args: tuple[str, ...]
    environment: dict[str, str]
    log: str | None


class Wanted(msgspec.Struct, frozen=True):
    """One line to the server: command lines to read, a child to fork, or a signal to send to one
    that has not ended.
    """

    lines: tuple[tuple[str, ...], ...] = ()
    birth: Birth | None = None
    pid: int = 0
    signal: int = 0


class Event(msgspec.Struct, frozen=True):
    """One line from the server: a child `number` began as `pid`, could not begin (`error`), or
    ended with a code, negative for a signal.
    """

    number: int
    pid: int = 0
    code: int | None = None
    error: str = ""


class ForkedProcess:
    """A child of the server; as much of `asyncio.subprocess.Process` as its keeper needs."""

    def __init__(self, server: "ForkServer", number: int) -> None:
        self.pid = 0
        self.returncode: int | None = None
        self.began: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._server = server
        self._number = number
        self._ended = asyncio.Event()

    async def wait(self) -> int:
        """Return the code it ended with."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        """Ask it to end."""
        self._server.send(Wanted(pid=self.pid, signal=signal.SIGTERM))

    def kill(self) -> None:
        """End it."""
        self._server.send(Wanted(pid=self.pid, signal=signal.SIGKILL))

    def take(self, event: Event) -> None:
        """Note what became of it."""
        if event.error and not self.began.done():
            self.began.set_exception(OSError(event.error))
        elif event.code is not None:
            self.returncode = event.code
            self._ended.set()
        elif not self.began.done():
            self.pid = event.pid
            self.began.set_result(None)


class ForkServer:
    """The keeper's side. Make it before the process has threads or an event loop: it loads the
    modules and forks.

    When the server is gone, its children have been asked to end and count as killed; `serves` is
    False from then on, and children are to be started in another way.
    """

    def __init__(self, modules: Sequence[str], prepare: Prepare) -> None:
        for name in modules:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _serve(theirs, prepare)
        theirs.close()
        self.serves = True
        self._socket = ours
        self._unread = b""
        self._number = 0
        self._children: dict[int, ForkedProcess] = {}

    def listen(self) -> None:
        """Learn from the running event loop on what becomes of children."""
        read = guarded("fork server", self._read)
        asyncio.get_running_loop().add_reader(self._socket.fileno(), read)

    def read(self, lines: Iterable[Sequence[str]]) -> None:
        """Have the settings of these command lines read once, before the first is forked: that
        takes 5 MiB, which each child would have for itself.
        """
        self.send(Wanted(lines=tuple(tuple(line) for line in lines)))

    async def spawn(
        self, args: Sequence[str], environment: Mapping[str, str], log: Path | None
    ) -> ForkedProcess:
        """Fork a kvmesh with these arguments. Raises `OSError`."""
        if not self.serves:
            raise OSError(GONE)
        self._number += 1
        child = self._children[self._number] = ForkedProcess(self, self._number)
        path = None if log is None else str(log)
        birth = Birth(self._number, tuple(args), dict(environment), path)
        self.send(Wanted(birth=birth))
        await child.began
        return child

    def send(self, wanted: Wanted) -> None:
        """Ask the server for something; nothing is left to ask for when it is gone."""
        try:
            self._socket.sendall(msgspec.json.encode(wanted) + b"\n")
        except OSError:
            self._lose()

    async def close(self) -> None:
        """End the server; it has no children any more."""
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self.serves = False
        self._socket.close()
        await asyncio.to_thread(os.waitpid, self.pid, 0)

    def _read(self) -> None:
        try:
            data = self._socket.recv(MOST_BYTES)
        except OSError:
            data = b""
        if not data:
            self._lose()
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            event = msgspec.json.decode(line, type=Event)
            self._children[event.number].take(event)
            if event.code is not None or event.error:
                del self._children[event.number]

    def _lose(self) -> None:
        if not self.serves:
            return
        self.serves = False
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        for child in self._children.values():
            child.take(Event(0, error=GONE))
            child.take(Event(0, code=-signal.SIGTERM))
        self._children.clear()


def _serve(sock: socket.socket, prepare: Prepare) -> NoReturn:
    """Fork what is asked for, until the other side is gone."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = _Server(sock, prepare)
    birth = server.run()
    if birth is not None:
        _become(birth)
        server.prepared(birth.args)()
        sys.exit(0)
    os._exit(0)


class _Server:
    """Forks what is asked for by a socket, and tells what becomes of it."""

    def __init__(self, sock: socket.socket, prepare: Prepare) -> None:
        self._socket = sock
        self._prepare = prepare
        self._prepared: dict[tuple[str, ...], Callable[[], object]] = {}
        self._unread = b""
        self._children: dict[int, int] = {}
        self._ended, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)

    def run(self) -> Birth | None:
        """Return in each child what it is, in the server None when the other side is gone."""
        while True:
            watched: list[socket.socket | int] = [self._socket, self._ended]
            ready, _, _ = select.select(watched, [], [])
            if self._ended in ready:
                os.read(self._ended, MOST_BYTES)
                self._reap()
            if self._socket not in ready:
                continue
            data = self._socket.recv(MOST_BYTES)
            if not data:
                return None
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                wanted = msgspec.json.decode(line, type=Wanted)
                if wanted.pid in self._children:
                    os.kill(wanted.pid, wanted.signal)
                for args in wanted.lines:
                    self._prepared[args] = self._prepare(args)
                if wanted.birth is not None and self._fork(wanted.birth):
                    return wanted.birth

    def prepared(self, args: tuple[str, ...]) -> Callable[[], object]:
        """Return what runs a command line."""
        return self._prepared.get(args) or self._prepare(args)

    def _fork(self, birth: Birth) -> bool:
        """Fork; return whether this is the child."""
        try:
            pid = os.fork()
        except OSError as error:
            self._report(Event(birth.number, error=str(error)))
            return False
        if pid == 0:
            signal.set_wakeup_fd(-1)
            os.close(self._ended)
            os.close(self._woken)
            self._socket.close()
            return True
        self._children[pid] = birth.number
        self._report(Event(birth.number, pid))
        return False

    def _reap(self) -> None:
        for pid in list(self._children):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                code = os.waitstatus_to_exitcode(status)
                self._report(Event(self._children.pop(pid), pid, code))

    def _report(self, event: Event) -> None:
        self._socket.sendall(msgspec.json.encode(event) + b"\n")


def _become(birth: Birth) -> None:
    """Be as a process that was started with its command line."""
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    files = [(os.devnull, (0,)), (birth.log, (1, 2))]
    for path, standards in files:
        if path is not None:
            file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            for standard in standards:
                os.dup2(file, standard)
            os.close(file)
    os.environ.clear()
    os.environ.update(birth.environment)
    sys.argv = ["kvmesh", *birth.args]
    _name_process((sys.executable, "-m", "kvmesh", *birth.args))


def _name_process(args: Sequence[str]) -> None:
    """Have ps, top and pgrep show these arguments.

    They take the place of the old ones and, as by setproctitle(3), of the environment behind these,
    of which the process has a copy by now.
    """
    ctypes.CDLL(None).prctl(_SET_NAME, " ".join(args[2:4]).encode())
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end, behind, last = map(int, fields[_ARGUMENTS : _ARGUMENTS + 4])
    except (OSError, ValueError):
        return
    line = " ".join(args).encode()
    room = (last if 0 <= behind - end <= 1 else end) - begin
    if 0 < begin < end:
        ctypes.memmove(begin, line[: room - 1].ljust(room, b"\0"), room)
