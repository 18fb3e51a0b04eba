"""One request on its way through routing."""

import msgspec

from kvmesh._native import Placed
from kvmesh.core.blocks.hashing import NO_HASHES, Hashes
from kvmesh.core.chat.prompt_form import Unforeseen
from kvmesh.core.cost.targets import Targets
from kvmesh.core.dispatch.wishes import Wishes
from kvmesh.core.programs.turn import Turn
from kvmesh.core.routing.decision import RouteRequest


class Dispatched(msgspec.Struct, eq=False):
    """What was asked, decided and seen of one request so far. Times in seconds.

    `visible_id` is the id that its client knows, `name` that of its bookings. `made` is what was
    asked: None of what was `placed` as it was scanned, by its `wishes`, and did not need it yet;
    then `placed_turn` is its program's.
    `placed` is its last booking, None before the first. `given` is what admission booked when the
    turn came of a request asked about at `asked_s` (-1: admission was not asked); then its tenant
    is `charged`; `tried`: it could not go at once. `taking`: its program's `turn` was begun, and is
    not over. `veiled`: its client may not learn how much was cached. `hashes` are its prompt's,
    kept for a worker that wants to know what its answers say.
    `unforeseen`: why it is not foretold how much of its prompt its engine reuses, "" if it is.
    """

    visible_id: bytes
    name: str
    streams: bool
    targets: Targets | None
    unforeseen: Unforeseen = ""
    made: RouteRequest | None = None
    placed: Placed | None = None
    wishes: Wishes | None = None
    placed_turn: Turn | None = None
    asked_s: float = -1.0
    charged: bool = False
    taking: bool = False
    tried: bool = False
    veiled: bool = False
    given: Placed | None = None
    hashes: Hashes | None = None

    @property
    def request(self) -> RouteRequest:
        """Return what was asked; of what was placed at once it is made when it is needed."""
        request = self.made
        if request is None:
            request = self.made = self._from_placed()
        return request

    @request.setter
    def request(self, request: RouteRequest) -> None:
        self.made = request

    @property
    def turn(self) -> Turn | None:
        """Return whose turn it is, None where it is part of no program."""
        return self.placed_turn if self.made is None else self.made.turn

    @property
    def plain(self) -> bool:
        """Return whether it was placed at once, and asked for nothing of its worker."""
        return self.wishes is not None and not self.wishes.chooses

    @property
    def known_hashes(self) -> Hashes:
        """Return its prompt's hashes; none after the first token."""
        if self.made is not None:
            return self.made.hashes
        return (None if self.placed is None else self.placed.hashes) or NO_HASHES

    def drop_hashes(self) -> None:
        """Let its prompt's hashes go: a stream may be long, and 100 KB of prompt have 250 KB."""
        if self.made is not None:
            self.made = msgspec.structs.replace(self.made, hashes=NO_HASHES)

    def _from_placed(self) -> RouteRequest:
        placed, wishes = self.placed, self.wishes
        assert placed is not None
        assert wishes is not None, "what was not placed at once has its request"
        return msgspec.structs.replace(
            wishes.request(placed.model),
            request_id=placed.request_id,
            hashes=NO_HASHES if placed.hashes is None else placed.hashes,
            prompt_tokens=placed.prompt_tokens,
            expected_output_tokens=placed.expected_output_tokens,
            streams=placed.streams,
            choices=placed.choices,
            turn=self.placed_turn,
            adapter="" if placed.inputs is None else placed.inputs.adapter,
        )


def as_read(request: RouteRequest, visible_id: bytes) -> Dispatched:
    """Return a request that was read, and has no worker yet."""
    return Dispatched(
        visible_id=visible_id,
        name=request.request_id,
        streams=request.streams,
        targets=request.targets,
        unforeseen=request.unforeseen,
        made=request,
    )


def at_once(placed: Placed, wishes: Wishes, turn: Turn | None) -> Dispatched:
    """Return a request that was placed by what was scanned of it."""
    record = placed.record
    charged = record.held_ms is not None
    return Dispatched(
        visible_id=record.request_id,
        name=placed.request_id,
        streams=placed.streams,
        targets=wishes.targets,
        placed=placed,
        wishes=wishes,
        placed_turn=turn,
        asked_s=record.decided_s if charged else -1.0,
        charged=charged,
        taking=charged or turn is not None,
    )
