"""Chats for proxy benchmarks: 20,000 that differ, behind 200 system prompts.

Half of a chat is its system prompt, half its own. All is prose of ASCII words, so that a tokenizer
finds in it what it was made for, and a JSON string needs no escapes.
"""

import random
import re
import sysconfig
from functools import cache
from pathlib import Path
from typing import Final

SYSTEM_PROMPTS: Final = 200
CHATS: Final = 20_000
HEAD: Final = '{"model":"m","messages":[{"role":"system","content":"'
MIDDLE: Final = '"},{"role":"user","content":"'
TAIL: Final = '"}],"max_tokens":16}'
_FRAME: Final = len(HEAD + MIDDLE + TAIL)
_LEAST: Final = 20
_MODULES: Final = ("argparse", "inspect", "tarfile", "subprocess", "typing", "logging/__init__")
_LINE: Final = 12


@cache
def prose() -> str:
    """Return some 200 kB of words, in sentences."""
    folder = Path(sysconfig.get_path("stdlib"))
    words: list[str] = []
    for module in _MODULES:
        words += re.findall(r"[A-Za-z]+", (folder / f"{module}.py").read_text("utf-8"))
    random.Random(1).shuffle(words)
    lines = [" ".join(words[at : at + _LINE]) for at in range(0, len(words), _LINE)]
    return ". ".join(lines)


class Chats:
    """Bodies of about `size` bytes, by number; `start` of its own part says which chat it is."""

    def __init__(self, size: int) -> None:
        self.part = max(_LEAST, (size - _FRAME) // 2)
        self.systems = [
            self._text(f"You are assistant {n}. ", n * 7919) for n in range(SYSTEM_PROMPTS)
        ]

    def body(self, number: int) -> bytes:
        """Return one of them; numbers that differ by `CHATS` are the same chat."""
        number %= CHATS
        own = self._text(f"Question {number}: ", number * 31)
        return f"{HEAD}{self.systems[number % SYSTEM_PROMPTS]}{MIDDLE}{own}{TAIL}".encode()

    def script(self, path: str, folder: Path, first: int) -> str:
        """Return a script of wrk that sends them from number `first` on."""
        (folder / "prose").write_text(prose())
        (folder / "systems").write_text("\n".join(self.systems))
        return f"""
        wrk.method = "POST"
        wrk.headers["content-type"] = "application/json"
        wrk.headers["authorization"] = "Bearer k"
        local systems, turn, prose = {{}}, {first - 1}, io.open("{folder}/prose"):read("*a")
        for line in io.lines("{folder}/systems") do systems[#systems + 1] = line end
        request = function()
            turn = (turn + 1) % {CHATS}
            local start = "Question " .. turn .. ": "
            local left = {self.part} - #start
            local at = turn * 31 % (#prose - {self.part})
            wrk.headers["x-foo"] = "bar-" .. turn
            return wrk.format(nil, "{path}", nil, '{HEAD}' .. systems[turn % #systems + 1] ..
                '{MIDDLE}' .. start .. string.sub(prose, at + 1, at + left) .. '{TAIL}')
        end
        done = function(summary, latency)
            io.write(string.format("RESULT %d %d %d %d\\n", summary.requests,
                summary.errors.status + summary.errors.connect + summary.errors.read,
                latency:percentile(50), latency:percentile(99)))
        end
        """

    def _text(self, start: str, place: int) -> str:
        text = prose()
        at = place % (len(text) - self.part)
        return start + text[at : at + self.part - len(start)]
