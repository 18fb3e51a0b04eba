"""A fleet of engines with small caches, and turns of agents."""

from collections.abc import Collection

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.governor import Governor
from kvmesh.core.programs.held import GovernorOptions
from kvmesh.core.programs.turn import Stop, Turn, TurnEnd

W1, W2, W3 = WorkerId("w1"), WorkerId("w2"), WorkerId("w3")


class SmallFleet:
    """Each worker holds `tokens`; one with 0 never said."""

    def __init__(self, **tokens: int) -> None:
        self.tokens = {WorkerId(name): held for name, held in tokens.items()}
        self.per_token_ms = 100.0
        self.seen = True
        self.active: dict[WorkerId, int] = {}
        self.slots: dict[WorkerId, int] = {}

    def workers(self, now: float) -> Collection[WorkerId]:
        del now
        return tuple(self.tokens)

    def contexts(self, worker: WorkerId) -> int:
        return self.slots.get(worker, 0)

    def capacity_tokens(self, worker: WorkerId) -> int:
        return self.tokens.get(worker, 0)

    def active_tokens(self, worker: WorkerId) -> int:
        return self.active.get(worker, 0)

    def ms_per_token(self, worker: WorkerId) -> float:
        del worker
        return self.per_token_ms

    def seen_ms_per_token(self, worker: WorkerId, tokens: int) -> float:
        del worker, tokens
        return self.per_token_ms if self.seen else 0.0


def make_governor(fleet: SmallFleet, **options: object) -> Governor:
    return Governor(GovernorOptions(**{"max_wait_s": 30.0} | options), fleet)  # type: ignore[arg-type]  # any option


def key(name: str) -> str:
    return f"{name:0>32}"


def make_turn(
    name: str, tokens: int, number: int = 1, *, program: str = "", **more: object
) -> Turn:
    return Turn(
        request_id=f"{name}/{number}",
        agent=key(name),
        program=key(program or name),
        prompt_tokens=tokens,
        **more,  # type: ignore[arg-type]  # any field
    )


def make_end(
    worker: WorkerId = W1,
    *,
    served: bool = True,
    stop: Stop = "tool",
    output_tokens: int = 10,
    computed_tokens: int = 100,
) -> TurnEnd:
    return TurnEnd(
        served=served,
        worker=worker,
        output_tokens=output_tokens,
        computed_tokens=computed_tokens,
        stop=stop,
    )


def take(governor: Governor, name: str, tokens: int, now: float, **more: object) -> Turn:
    turn = make_turn(name, tokens, **more)  # type: ignore[arg-type]  # any field
    assert governor.ask(turn, now) is not None
    governor.chosen(turn, W1, now)
    return turn
