"""Requests of real hybrid engines, served by simulated ones: the same reuse, the same events."""

from msgspec import msgpack, structs

from kvmesh.core.blocks.hashing import sequence_hashes
from kvmesh_lab.mocker.model.cache_group import split_key
from kvmesh_lab.mocker.model.engine import EngineModel
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.request import (
    BlocksRemoved,
    BlocksStored,
    EngineEvent,
    EngineRequest,
    GroupStored,
    Step,
)
from tests.unit.core.engines.recordings import FIXTURES, Batch, Recorded, load

GEMMA3 = "vllm_0.32.0_gemma3.recording.gz"
OUTPUT, WINDOWS = 4, 5
"""Tokens of each answer; groups of windows before that of full attention."""
REAL = EngineOptions(block_size=32, max_num_batched_tokens=2048)


def requests_of(name: str) -> list[Recorded]:
    found = [one for one in load(FIXTURES / name) if isinstance(one, Recorded)]
    assert sum(one.cached > 0 for one in found) > len(found) // 4
    return found


def served(model: EngineModel, number: int, recorded: Recorded) -> tuple[int, list[Step]]:
    """Serve a recorded request alone; return the tokens reused, and the steps that told events."""
    size = model.options.block_size
    hashes = list(sequence_hashes(recorded.prompt, size))
    request = EngineRequest(str(number), hashes, len(recorded.prompt), OUTPUT)
    model.add(request, 0.0)
    steps: list[Step] = []
    while (step := model.step(0.0)) is not None:
        steps.append(step)
    return request.cached_tokens, [step for step in steps if step.events]


def shape(events: list[EngineEvent]) -> list[tuple[int, int]]:
    """The group of each event, in vLLM's numbers, and its blocks: fewer than none if removed."""
    made: list[tuple[int, int]] = []
    for event in events:
        match event:
            case BlocksStored():
                made.append((WINDOWS, len(event.hashes)))
            case GroupStored():
                made.append((event.group.number - 1, len(event.hashes)))
            case BlocksRemoved():
                groups = [split_key(key)[0] for key in event.hashes]
                made += [((group or WINDOWS + 1) - 1, -1) for group in groups]
            case _:
                raise AssertionError(event)
    return made


def real_shapes(name: str) -> list[list[tuple[int, int]]]:
    batches = [bytes.fromhex(one.hex) for one in load(FIXTURES / name) if isinstance(one, Batch)]
    return [
        [
            (event["group_idx"], len(event["block_hashes"]) * (1 if "token_ids" in event else -1))
            for event in msgpack.decode(batch)[1]
        ]
        for batch in batches
    ]


def test_windows_are_kept_told_and_evicted_as_by_a_real_vllm() -> None:
    model = EngineModel(
        structs.replace(REAL, num_gpu_blocks=400, sliding_window=128, window_groups=WINDOWS)
    )
    recorded = requests_of(GEMMA3)

    made = [served(model, number, one) for number, one in enumerate(recorded)]

    reported = [shape(step.events) for _, steps in made for step in steps]
    assert [reused for reused, _ in made] == [one.cached for one in recorded]
    assert reported == real_shapes(GEMMA3)
    assert sum(count < 0 for batch in reported for _, count in batch) > 100


def test_mamba_states_are_reused_as_by_a_real_vllm() -> None:
    model = EngineModel(structs.replace(REAL, num_gpu_blocks=130, mamba_groups=3))
    recorded = requests_of("vllm_0.32.0_lfm2.recording.gz")

    reused = [served(model, number, one)[0] for number, one in enumerate(recorded)]

    assert reused == [one.cached for one in recorded]
