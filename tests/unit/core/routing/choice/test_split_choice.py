import random

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.members.loads import Demand, new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.worker_info import WorkerInfo
from kvmesh.core.routing.choice.kv_transfers import Transfers
from kvmesh.core.routing.choice.split_choice import CHEAPER, LITTLE, NOBODY, choose_way
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.disaggregation import SplitOptions, role_marks
from kvmesh.core.routing.scheduler import Scheduler

TRANSFERS = Transfers()
OPTIONS = SplitOptions(threshold_tokens=256, max_retries=2, timeout_s=10.0)
PREFILL, DECODE = WorkerId("p"), WorkerId("d")


def fleet(*, whole: bool = True, prefillers: bool = True) -> Scheduler:
    """Return a scheduler of one prefill and one decode worker."""
    membership = Membership()
    scheduler = Scheduler(
        RouterOptions(), random.Random(1), membership=membership, sequences=new_sequences(16)
    )
    for name, role in ((PREFILL, "prefill"), (DECODE, "decode")):
        if role == "prefill" and not prefillers:
            continue
        membership.add(name, 0.0)
        labels, taints = role_marks(role, whole=whole)  # type: ignore[arg-type]  # one of three
        info = WorkerInfo(labels=frozenset(labels), taints=frozenset(taints))
        scheduler.workers.describe(name, info)
    return scheduler


def asked(tokens: int) -> RouteRequest:
    return RouteRequest("r", BlockHashes.of(list(range(tokens // 16)), 16), tokens)


def busy(scheduler: Scheduler, worker: WorkerId, count: int, uncached: int = 0) -> None:
    """Have `count` requests run there, which have `uncached` tokens each to prefill."""
    for number in range(count):
        demand = Demand(prompt_tokens=2000, uncached_tokens=uncached)
        scheduler.sequences.add(f"{worker}{number}", worker, demand, 0.0)
        if not uncached:
            scheduler.sequences.first_token(f"{worker}{number}", 0.0)


def reason(scheduler: Scheduler, tokens: int = 8000, options: SplitOptions = OPTIONS) -> str:
    return choose_way(scheduler, asked(tokens), options, TRANSFERS, 0.0).reason


def test_a_prompt_goes_elsewhere_once_it_would_hold_up_those_who_decode() -> None:
    idle, decoding = fleet(), fleet()
    busy(decoding, DECODE, 8)

    assert (reason(idle), reason(decoding)) == (CHEAPER, "")


def test_little_to_prefill_is_not_worth_it() -> None:
    scheduler = fleet()
    busy(scheduler, DECODE, 8)

    assert reason(scheduler, 200) == LITTLE
    assert reason(scheduler, 200, msgspec.structs.replace(OPTIONS, threshold_tokens=0)) != LITTLE


def test_always_means_always() -> None:
    assert reason(fleet(), options=msgspec.structs.replace(OPTIONS, adaptive=False)) == ""


def test_without_prefill_workers_all_stays_whole() -> None:
    assert reason(fleet(prefillers=False)) == NOBODY


def test_what_no_worker_can_do_whole_is_split() -> None:
    assert reason(fleet(whole=False), 100) == ""
