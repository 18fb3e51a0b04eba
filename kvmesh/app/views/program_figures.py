"""Figures of programs: who takes turns, who waits and for how long, and how full caches are."""

from typing import Final

from kvmesh.app.serve.toucher import TouchFigures
from kvmesh.app.serve.warmer import WarmFigures
from kvmesh.app.views.figure import Figure, Shown, Table
from kvmesh.app.views.program_rows import WorkerPressure
from kvmesh.app.views.program_watch import ProgramWatch
from kvmesh.core.programs.sharing import SharingStatistics

# How a figure is read, then what it is.
# fmt: off
PROGRAMS: Final = Table[ProgramWatch](
    Figure("gauge", "kvmesh_programs", lambda one: dict[str, float](one.seen.states.items()),
           "Programs (an agent's session with its sub-agents) by what they do: a turn waits, a "
           "turn runs, all pause, all ended.", ("state",)),
    Figure("gauge", "kvmesh_program_agents", lambda one: len(one.governor.table),
           "Agents known: programs and their sub-agents."),
    Figure("gauge", "kvmesh_program_turns_held", lambda one: len(one.governor.waiting),
           "Turns held here now, until their program's context fits a cache.",
           shown=Shown("turns_held", bucket="sum")),
    Figure("counter", "kvmesh_program_turns_ended", lambda one: {
               "released": one.governor.statistics().released - one.governor.statistics().late,
               "late": one.governor.statistics().late},
           "Turns that were held, by how that ended: their program fit, or it went whatever "
           "it evicts.", ("how",)),
    Figure("summary", "kvmesh_program_waits_seconds", lambda one: (
               one.governor.statistics().released, one.governor.statistics().waited_s),
           "How long turns were held that went on."),
    Figure("gauge", "kvmesh_program_longest_wait_seconds", lambda one: one.longest_wait_s(),
           "How long the turn that is held longest waits now."),
    Figure("gauge", "kvmesh_program_wait_bound_seconds",
           lambda one: one.bound_s(),
           "How long the turn that is held longest waits at most, all in all."),
    Figure("counter", "kvmesh_program_evicted_tokens",
           lambda one: one.governor.statistics().lost_tokens,
           "Tokens of live programs' contexts that engines evicted: the signal of thrash."),
    Figure("gauge", "kvmesh_program_unplaced_tokens", lambda one: one.seen.unplaced_tokens,
           "Contexts of turns that wait and have no worker, tokens."),
    Figure("gauge", "", lambda one: one.seen.states.get("waiting", 0),
           "Programs with a turn that waits.", shown=Shown("programs_waiting", bucket="max")),
    Figure("gauge", "", lambda one: sum(one.seen.states.values()) - one.seen.states.get("ended", 0),
           "Programs that have not ended.",
           shown=Shown("programs", dashboard="Programs", narrow="p3", bucket="max")),
)

TOUCHES: Final = Table[TouchFigures](
    Figure("counter", "kvmesh_program_touches", lambda one: {
               "done": one.done, "failed": one.failed},
           "Contexts sent to their engine again for one token (--program-turns touch).", ("how",)),
    Figure("counter", "kvmesh_program_touch_computed_tokens", lambda one: one.computed_tokens,
           "Prompt tokens that engines computed for that: they were no longer cached."),
    Figure("gauge", "kvmesh_program_prompt_bytes", lambda one: one.prompt_bytes,
           "Prompts that are kept for it, bytes; at most 64 MiB."),
)

WARMED: Final = Table[WarmFigures](
    Figure("counter", "kvmesh_warmed_tokens", lambda one: one.warmed.tokens,
           "Prompt tokens that workers computed before they served (--warm-share)."),
    Figure("counter", "kvmesh_warm_requests", lambda one: {
               "done": one.warmed.sent, "failed": one.warmed.failed},
           "Prompts sent for one token to workers that do not serve yet.", ("how",)),
    Figure("counter", "kvmesh_handed_over_tokens", lambda one: one.handed_over.tokens,
           "Prompt tokens that workers computed since only one that leaves kept them"
           " (--warm-share)."),
    Figure("counter", "kvmesh_hand_over_requests", lambda one: {
               "done": one.handed_over.sent, "failed": one.handed_over.failed},
           "Prompts sent for one token since only a worker that leaves kept them.", ("how",)),
    Figure("gauge", "kvmesh_warming_workers", lambda one: one.waiting,
           "Workers that get no requests yet: they are given prefixes first."),
    Figure("gauge", "kvmesh_warm_prompt_bytes", lambda one: one.prompt_bytes,
           "Prompts that are kept for it, bytes; at most 64 MiB."),
)

PRESSURES: Final = Table[WorkerPressure](
    Figure("gauge", "kvmesh_program_reserved_tokens", lambda one: one.reserved_tokens,
           "Cache that is kept for programs which may take turns, tokens."),
    Figure("gauge", "kvmesh_working_set_tokens", lambda one: one.working_set_tokens,
           "Contexts of the programs that are live at a worker, those that wait included, tokens.",
           shown=Shown("working_set_tokens", bucket="sum", replicas="max")),
    Figure("gauge", "kvmesh_worker_cache_tokens", lambda one: one.capacity_tokens or None,
           "Tokens that a worker's KV cache holds by its engine's word."),
    Figure("gauge", "", lambda one: (
               one.working_set_tokens / one.capacity_tokens if one.capacity_tokens else None),
           "Working set of live programs against the cache there is.",
           shown=Shown("program_pressure", dashboard="Live contexts", format="percent",
                       narrow="p3", replicas="max")),
    labels=("worker",),
)

PROGRAM_NEWS: Final = Table[SharingStatistics](
    Figure("counter", "kvmesh_program_news", lambda one: {
               "told": one.reported, "heard": one.received, "refused": one.refused,
               "orphaned": one.orphaned},
           "Records of agents in the table that replicas share: written, read, not believed; and "
           "turns that ended with their replica.", ("what",)),
    Figure("counter", "kvmesh_program_news_bytes", lambda one: one.published_bytes,
           "Bytes of the records written."),
)
