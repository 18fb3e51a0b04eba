"""How far a request has to go: the calls and files of a warm chat must not grow unnoticed."""

import subprocess
import sys

import msgspec
import pytest

from benchmarks.trace.calls import Crossings

MOST = {"": (134, 43), "key": (141, 45), "session": (156, 50), "targets": (161, 50)}
"""Calls and files by what else the head has. Of a plain chat 43 and up to 131 calls, by how reads
fall together, 5 of them for judging the answer, 15 for what its stream needs to go on elsewhere, 3
for having its usage told, 3 for a head that is like no other, 1, and a file, for keeping its prompt
for workers that join; a timer of the process may fall into it.
"""


def measure(wish: str) -> Crossings:
    """Send a chat in a process of its own: here debug logs are on, and coverage may trace."""
    command = [sys.executable, "-m", "benchmarks.trace.chat", "--json", "--wish", wish]
    done = subprocess.run(command, capture_output=True, check=True, timeout=120)
    return msgspec.json.decode(done.stdout, type=Crossings)


@pytest.mark.parametrize("wish", MOST)
def test_a_warm_chat_passes_no_more_calls_and_files_than_it_did(wish: str) -> None:
    calls, files = MOST[wish]
    found = measure(wish)
    if found.calls > calls or found.files > files:
        found = measure(wish)

    assert found.calls <= calls
    assert found.files <= files
    assert found.tree[0].function == "Connection.data_received"
