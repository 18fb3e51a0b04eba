"""Whether kvmesh's token ids are the engine's, asked of a sample of live answers.

A template or tokenizer that differs from the engine's makes every predicted overlap wrong, without
an error anywhere. Engines tell the ids they used when asked; a model that disagrees is no longer
routed by tokens until it agrees again.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from kvmesh.core.engines.registry import ENGINES

_TELLING: Final = [one.prompt_ids for one in ENGINES.values() if one.prompt_ids is not None]

RETURN_IDS_FIELDS: Final[Mapping[str, msgspec.Raw]] = {
    name: msgspec.Raw(value) for one in _TELLING for name, value in one.fields.items()
}
"""Body fields that make an engine, whatever its kind, return a prompt's token ids."""

RETURN_IDS_HEADERS: Final = tuple(header for one in _TELLING for header in one.headers)
"""Request headers that do."""


MOST_MODELS: Final = 256
"""Models of which anything is remembered. Names are the clients': those used last are kept, and of
these the ones in doubt.
"""


MOST_NAMED: Final = 16
"""Models in doubt that warnings and metrics name."""

OTHERS: Final = "(others)"


class ParityOptions(msgspec.Struct, frozen=True):
    """How often to ask. The first answers of a model are all asked, then one in `sample_every`.

    `sample_every` 0 asks never. A model in doubt is asked every `probe_every` requests, and is
    trusted again after `regain_after` agreements in a row.
    """

    first: int = 3
    sample_every: int = 1000
    probe_every: int = 20
    regain_after: int = 10


class ParityReport(msgspec.Struct, frozen=True):
    """One comparison. `position` is where the ids first differ, None when they agree.

    `changed` tells that this answer turned `trusted`: the moment to log it.
    """

    model: str
    trusted: bool
    changed: bool
    position: int | None
    our_length: int
    engine_length: int
    our_ids: tuple[int, ...] = ()
    engine_ids: tuple[int, ...] = ()

    def describe(self) -> str:
        """Return the disagreement in words, with the ids around it."""
        if self.position is None:
            return f"model {self.model}: {self.our_length} prompt token ids agree with the engine's"
        return (
            f"model {self.model}: prompt token ids differ from the engine's from position "
            f"{self.position} on: ours {list(self.our_ids)} of {self.our_length}, the engine's "
            f"{list(self.engine_ids)} of {self.engine_length}; give kvmesh the engine's own model "
            "directory and chat template"
        )


class ParityStatistics(msgspec.Struct, frozen=True):
    """Counters since the start; `untrusted` are the models in doubt now."""

    compared: int
    disagreements: int
    untrusted: tuple[str, ...]

    def by_model(self) -> dict[str, float]:
        """Return 1 for each of the first `MOST_NAMED` in doubt, and under `OTHERS` how many more.

        An engine may answer to any name, so that clients choose what stands here.
        """
        named = dict.fromkeys(self.untrusted[:MOST_NAMED], 1.0)
        more = len(self.untrusted) - MOST_NAMED
        return named | ({OTHERS: float(more)} if more > 0 else {})


class _ModelState(msgspec.Struct, eq=False):
    """What is known of one model."""

    requests: int = 0
    agreed_in_row: int = 0


class ParityProbe:
    """Chooses the requests to ask, and keeps which models' token ids are `doubted`: requests of
    those may not be routed by them.
    """

    def __init__(self, options: ParityOptions) -> None:
        self._options = options
        self.doubted: set[str] = set()
        self._models: dict[str, _ModelState] = {}
        self._compared = 0
        self._disagreements = 0

    def passes(self, model: str) -> bool:
        """Count a request of `model` that is routed by our ids and need not be compared; False,
        and nothing counted: `wants` and `doubted` have to be asked.
        """
        options, models = self._options, self._models
        if options.sample_every <= 0:
            return True
        state = models.get(model)
        if state is None or model in self.doubted or state.requests < options.first:
            return False
        if (state.requests + 1) % options.sample_every == 0:
            return False
        if len(models) > 1:
            models[model] = models.pop(model)
        state.requests += 1
        return True

    def wants(self, model: str) -> bool:
        """Count a request of `model`, return whether its answer should carry the engine's ids.

        From any thread.
        """
        options = self._options
        if options.sample_every <= 0:
            return False
        models = self._models
        state = models.pop(model, None)
        if state is None:
            state = self._admit(model)
        else:
            models[model] = state
        state.requests += 1
        if state.requests <= options.first:
            return True
        return (
            state.requests
            % (options.probe_every if model in self.doubted else options.sample_every)
            == 0
        )

    def observe(
        self, model: str, ours: Sequence[int], engine: Sequence[int], *, truncated: bool = False
    ) -> ParityReport:
        """Compare one prompt's ids; with `truncated` ours need only be a prefix. O(length)."""
        state = self._models.get(model) or self._admit(model)
        before = trusted = model not in self.doubted
        position = first_difference(ours, engine, truncated=truncated)
        self._compared += 1
        if position is None:
            state.agreed_in_row += 1
            trusted = before or state.agreed_in_row >= self._options.regain_after
        else:
            self._disagreements += 1
            state.agreed_in_row = 0
            trusted = False
        if trusted:
            self.doubted.discard(model)
        else:
            self.doubted.add(model)
        start = 0 if position is None else max(position - 2, 0)
        stop = 0 if position is None else position + 6
        return ParityReport(
            model=model,
            trusted=trusted,
            changed=trusted != before,
            position=position,
            our_length=len(ours),
            engine_length=len(engine),
            our_ids=tuple(ours[start:stop]),
            engine_ids=tuple(engine[start:stop]),
        )

    def __len__(self) -> int:
        """Return of how many models anything is remembered."""
        return len(self._models)

    def _admit(self, model: str) -> _ModelState:
        """Remember a model, and another one no longer where there are too many."""
        models = self._models
        state = models[model] = _ModelState()
        if len(models) > MOST_MODELS:
            names = list(models)  # at once: other threads come in between
            oldest = next((one for one in names[:-1] if one not in self.doubted), names[0])
            models.pop(oldest, None)
            self.doubted.discard(oldest)
        return state

    def statistics(self) -> ParityStatistics:
        """Return the counters."""
        return ParityStatistics(self._compared, self._disagreements, tuple(sorted(self.doubted)))


def first_difference(
    ours: Sequence[int], engine: Sequence[int], *, truncated: bool = False
) -> int | None:
    """Return the first position at which the ids differ; a missing id differs from any."""
    pairs = enumerate(zip(ours, engine, strict=False))
    differing = next((index for index, (a, b) in pairs if a != b), None)
    if differing is not None:
        return differing
    if len(ours) == len(engine) or (truncated and len(ours) < len(engine)):
        return None
    return min(len(ours), len(engine))


def engine_prompt_ids(answer: bytes) -> list[int] | None:
    """Return the prompt ids in an answer or stream chunk (JSON), None when it holds none."""
    answers = (one.read(answer) for one in _TELLING)
    return next((ids for ids in answers if ids is not None), None)


def ask_for_ids(body: bytes, fields: Mapping[str, bytes]) -> bytes:
    """Return a JSON object body with `fields` (JSON by name) put in front, the rest untouched.

    A field of the client's own comes later and wins. What is not an object stays as it is.
    """
    head, brace, rest = body.partition(b"{")
    if not fields or not brace or head.strip() or not rest.strip():
        return body
    comma = b"" if rest.lstrip().startswith(b"}") else b","
    asked = b",".join(b'"%s":%s' % (name.encode(), value) for name, value in fields.items())
    return head + brace + asked + comma + rest
