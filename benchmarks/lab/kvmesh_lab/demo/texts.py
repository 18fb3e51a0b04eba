"""What the demonstrations say: conversations, as printed in their description and at scale."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Literal, get_args

import msgspec

from kvmesh_lab.mocker.model.answer import WORDS

Demonstration = Literal["shared system prompt", "multi-turn", "load spread", "related queries"]
LoadName = Literal["printed", "light", "full"]

DEMONSTRATIONS: Final[tuple[Demonstration, ...]] = get_args(Demonstration)
LOADS: Final[tuple[LoadName, ...]] = get_args(LoadName)

EXPLAINER: Final = (
    "You are a helpful AI assistant specialized in explaining complex topics in simple terms."
)
HELPFUL: Final = "You are a helpful assistant."
ALICE: Final = "My name is Alice and I work as a data scientist."
PROFESSION: Final = "What did I tell you about my profession?"
TOPICS: Final = ("science", "history", "technology", "literature", "music")
FIELDS: Final = ("medicine", "finance", "farming", "transport", "education")
FOLLOW_UPS: Final = (PROFESSION, "And my name?")
"""Few, as in the printed one: a conversation of many turns has been at every worker under any
policy, and is found there.
"""


LANES_AT_ONCE: Final = 5
QUESTIONS: Final = 5
"""Requests with one beginning, as in the printed demonstration."""

LIGHT_LANES: Final = 1
FULL_LANES_A_WORKER: Final = 16
RAMP_S: Final = 2.0
"""Clients that all begin in one instant measure a queue that no client ever sees again."""


class Dialogue(msgspec.Struct, frozen=True):
    """A client's messages, each sent when the answer to the one before has ended."""

    system: str
    turns: tuple[str, ...]
    max_tokens: int


class Workload(msgspec.Struct, frozen=True):
    """Dialogues in the order in which they begin, `lanes` of them at a time, of which the last
    begins after `ramp_s` seconds.
    """

    demonstration: Demonstration
    load: LoadName
    lanes: int
    dialogues: tuple[Dialogue, ...]
    ramp_s: float = 0.0


class Size(msgspec.Struct, frozen=True):
    """How much is sent: `characters` is how many make a token, `scale` how many requests, of the
    usual number.
    """

    workers: int
    characters: float = 1.0
    scale: float = 1.0


class Writer:
    """Makes one workload's text: other `salt`s share no beginning, equal ones are equal."""

    def __init__(self, salt: str, size: Size) -> None:
        self.salt = salt
        self._size = size

    def prose(self, name: str, tokens: int) -> str:
        """Return about so many tokens of words; other names have other words."""
        rng = Random(f"{self.salt}/{name}")  # noqa: S311  no secret
        wanted, length = round(tokens * self._size.characters), 0
        parts: list[str] = []
        while length < wanted:
            parts.append(rng.choice(WORDS))
            length += len(parts[-1]) + 1
        return " ".join(parts)[:wanted].strip()

    def count(self, groups: int) -> int:
        """Return how many of `groups` are sent at this scale, at least one."""
        return max(1, round(groups * self._size.scale))


def make_workload(demonstration: Demonstration, load: LoadName, salt: str, size: Size) -> Workload:
    """Return what a demonstration sends at a load; `salt` keeps it apart from all others' caches.

    The sizes are those of a product: system prompts of 3,000 tokens, first messages of 2,000.
    """
    writer = Writer(salt, size)
    if load == "printed":
        dialogues: Sequence[Dialogue] = PRINTED[demonstration](salt)
        return Workload(demonstration, load, LANES_AT_ONCE, tuple(dialogues))
    full = load == "full"
    lanes = FULL_LANES_A_WORKER * size.workers if full else LIGHT_LANES
    dialogues = SCALED[demonstration](writer, full)
    if full:
        Random(demonstration).shuffle(dialogues)  # noqa: S311  no secret
    return Workload(demonstration, load, lanes, tuple(dialogues), RAMP_S if full else 0.0)


def _shared_printed(salt: str) -> list[Dialogue]:
    system = f"{salt} {EXPLAINER}"
    questions = [f"Question {n}: What is machine learning?" for n in range(1, QUESTIONS + 1)]
    return [Dialogue(system, (question,), 100) for question in questions]


def _turns_printed(salt: str) -> list[Dialogue]:
    return [Dialogue(f"{salt} {HELPFUL}", (ALICE, PROFESSION), 50)]


def _spread_printed(salt: str) -> list[Dialogue]:
    return [Dialogue("", (f"Tell me about {topic} {salt}",), 100) for topic in TOPICS]


def _related_printed(salt: str) -> list[Dialogue]:
    system = f"{salt} {EXPLAINER}"
    return [
        Dialogue(system, (f"How is machine learning used in {field}, and what will change?",), 100)
        for field in FIELDS
    ]


def _shared(writer: Writer, full: bool) -> list[Dialogue]:
    found: list[Dialogue] = []
    for tenant in range(writer.count(48 if full else 8)):
        name = f"tenant {tenant}"
        system = f"{writer.salt} {name}: {EXPLAINER} {writer.prose(name, 3000)}"
        for question in range(1, QUESTIONS + 1):
            asked = writer.prose(f"{name}/{question}", 150)
            found.append(Dialogue(system, (f"Question {question}: {asked}",), 50 if full else 10))
    return found


def _turns(writer: Writer, full: bool) -> list[Dialogue]:
    found: list[Dialogue] = []
    for number in range(writer.count(96 if full else 12)):
        name = f"conversation {number}"
        first = f"{ALICE} {name}: {writer.prose(name, 2000)}"
        later = [f"{turn} {writer.prose(f'{name}/{turn}', 200)}" for turn in FOLLOW_UPS]
        found.append(Dialogue(f"{writer.salt} {HELPFUL}", (first, *later), 50 if full else 10))
    return found


def _spread(writer: Writer, full: bool) -> list[Dialogue]:
    found: list[Dialogue] = []
    for number in range(writer.count(160 if full else 40)):
        topic = TOPICS[number % len(TOPICS)]
        asked = f"Tell me about {topic} {writer.salt} {writer.prose(f'topic {number}', 1000)}"
        found.append(Dialogue("", (asked,), 50 if full else 10))
    return found


def _related(writer: Writer, full: bool) -> list[Dialogue]:
    found: list[Dialogue] = []
    for area in range(writer.count(48 if full else 8)):
        handbook = f"{writer.salt} {EXPLAINER} Area {area}: {writer.prose(f'area {area}', 2400)}"
        for field in FIELDS:
            own = writer.prose(f"area {area}/{field}", 800)
            found.append(
                Dialogue(handbook, (f"How is it used in {field}? {own}",), 50 if full else 10)
            )
    return found


PRINTED: Final[dict[Demonstration, Callable[[str], list[Dialogue]]]] = {
    "shared system prompt": _shared_printed,
    "multi-turn": _turns_printed,
    "load spread": _spread_printed,
    "related queries": _related_printed,
}
SCALED: Final[dict[Demonstration, Callable[[Writer, bool], list[Dialogue]]]] = {
    "shared system prompt": _shared,
    "multi-turn": _turns,
    "load spread": _spread,
    "related queries": _related,
}
