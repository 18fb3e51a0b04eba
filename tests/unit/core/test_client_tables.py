"""Every table keyed by what clients write: filled with ten times its bound, it stays within it."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from kvmesh._native import RoundRobinShadow
from kvmesh.core.admission.queue import AdmissionOptions, HoldQueue, WaitingRequest
from kvmesh.core.admission.usage import Consumer, UsageSums, UsageTable
from kvmesh.core.admission.usage_book import MOST_UNSENT, UsageBook
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.buckets.homes import HomeOptions, Homes
from kvmesh.core.dispatch.turns import Turns
from kvmesh.core.index.approx import new_approx
from kvmesh.core.insight.hot_prefixes import HotPrefixes
from kvmesh.core.insight.prefix_families import HALVED_AFTER, PrefixFamilies
from kvmesh.core.members.health_record import MemberRecord
from kvmesh.core.members.known_names import KnownNames
from kvmesh.core.members.noted_failures import REQUESTS_REMEMBERED, NotedFailure, NotedFailures
from kvmesh.core.members.poison_guard import MAX_REMEMBERED, PoisonGuard
from kvmesh.core.programs.chains import ChainOptions, Chains
from kvmesh.core.programs.turn import TurnEnd
from kvmesh.core.prompts.parity import MOST_MODELS, ParityOptions, ParityProbe
from kvmesh.core.prompts.remote_prefixes import RemotePrefixes
from kvmesh.core.routing.output_lengths import new_lengths
from kvmesh.core.routing.sessions import SessionOptions, Sessions, session_key
from tests.reference.routing.output_lengths import NO_FORECAST
from tests.unit.core.programs.program_cases import W1, SmallFleet, make_governor, make_turn

BOUND = 64
TIMES = 10


class Table(NamedTuple):
    """How to fill a table with something new, and what is in it."""

    fill: Callable[[int], object]
    size: Callable[[], int]
    bound: int = BOUND


def sessions() -> Table:
    table = Sessions(SessionOptions(max_sessions=BOUND))
    return Table(
        lambda n: table.bind(session_key(f"session-{n}", f"tenant-{n}"), WorkerId("w"), float(n)),
        lambda: max(table.statistics().sessions, len(table.updates)),
    )


def homes() -> Table:
    table = Homes(HomeOptions(max_homes=BOUND))
    return Table(
        lambda n: table.note(n, "bucket", float(n)), lambda: max(len(table), len(table.updates))
    )


def output_lengths() -> Table:
    table = new_lengths(16, max_families=BOUND)

    def fill(n: int) -> None:
        families, _ = table.forecast(BlockHashes.of(list(range(n * 999, n * 999 + 300)), 16))
        table.learn(families, 7, NO_FORECAST)

    return Table(fill, lambda: table.statistics().families)


def noted_failures() -> Table:
    table, record = NotedFailures(), MemberRecord(0.0)
    return Table(
        lambda n: table.add(f"request-{n}", NotedFailure("w", record, float(n)), 1.0),
        lambda: len(table),
        REQUESTS_REMEMBERED,
    )


def poison() -> Table:
    table = PoisonGuard()
    return Table(
        lambda n: table.died(b"body %d" % n, "w", n / 1000),
        lambda: len(table.deaths),
        MAX_REMEMBERED,
    )


def hot_prefixes() -> Table:
    table = HotPrefixes(max_nodes=BOUND)
    return Table(lambda n: table.record([n + 1], 0, float(n)), table.nodes)


def prefix_families() -> Table:
    table = PrefixFamilies()
    return Table(lambda n: table.name([n + 1]), table.counted, HALVED_AFTER)


def round_robin_shadow() -> Table:
    table = RoundRobinShadow(BOUND)
    return Table(
        lambda n: table.route(list(range(n * 99, n * 99 + 20)), 2, 1024), table.entries, 2 * BOUND
    )


def token_check() -> Table:
    table = ParityProbe(ParityOptions())
    return Table(
        lambda n: table.wants(f"model-{n}"),
        lambda: max(len(table), len(table.doubted)),
        MOST_MODELS,
    )


def doubted_models() -> Table:
    table = ParityProbe(ParityOptions())
    return Table(
        lambda n: table.observe(f"model-{n}", [1], [2]), lambda: len(table.doubted), MOST_MODELS
    )


def remote_prefixes() -> Table:
    table = RemotePrefixes(1 << 14)
    return Table(
        lambda n: table.learn([n, n + 1_000_000], list(range(50))),
        lambda: table.statistics().bytes,
        1 << 14,
    )


def programs() -> Table:
    """Each takes a turn and ends it: nobody else takes the news along."""
    table = make_governor(SmallFleet(w1=1000), max_agents=BOUND)
    turns = Turns(table, 16)
    served = TurnEnd(served=True, worker=W1)

    def fill(n: int) -> None:
        turn = make_turn(f"agent-{n}", 10, tenant=f"tenant-{n}")
        turns.begin(turn, W1, float(n))
        turns.end(turn, served, float(n))

    return Table(
        fill,
        lambda: max(len(table.table), len(table.updates), table.statistics().seated),
    )


def unnamed_agents() -> Table:
    table = Chains(ChainOptions(least_tokens=16, max_chains=BOUND), 16)

    def fill(n: int) -> None:
        table.learn(BlockHashes.of([n * 9 + 1, n * 9 + 2], 16), f"tenant-{n}", float(n))

    return Table(fill, lambda: len(table))


def held_requests() -> Table:
    table = HoldQueue(AdmissionOptions(max_queued=BOUND))
    return Table(
        lambda n: table.offer(WaitingRequest(f"request-{n}", 1, f"tenant-{n}"), 1.0),
        lambda: max(len(table), table.statistics().tenants),
    )


def served_models() -> Table:
    table = KnownNames(BOUND)
    return Table(lambda n: table.add([f"model-{n}"]), lambda: len(table))


def own_decisions() -> Table:
    table = new_approx(max_entries=BOUND)
    return Table(
        lambda n: table.record(WorkerId(f"w{n % 3}"), [n * 9 + 1, n * 9 + 2], float(n) / 1000),
        lambda: table.statistics().entries,
    )


def usage() -> Table:
    table = UsageTable(BOUND)
    return Table(
        lambda n: table.add(f"tenant-{n % 100}", f"session-{n}", UsageSums(requests=1)),
        lambda: max(len(table), len(list(table.rows()))),
    )


def unsent_usage() -> Table:
    """Nothing stores the batches; what is open between two flushes is emptied by each."""
    book = UsageBook("chat", "r0", 1)
    book.keep_unsent()

    def fill(n: int) -> None:
        book.count(Consumer(tenant=f"tenant-{n}"), UsageSums(requests=1))
        book.flush(float(n))

    return Table(fill, lambda: len(book.unsent), MOST_UNSENT)


TABLES = [
    usage,
    unsent_usage,
    own_decisions,
    sessions,
    homes,
    output_lengths,
    noted_failures,
    poison,
    hot_prefixes,
    prefix_families,
    round_robin_shadow,
    token_check,
    doubted_models,
    remote_prefixes,
    held_requests,
    programs,
    unnamed_agents,
    served_models,
]


@pytest.mark.parametrize("make", TABLES, ids=lambda make: make.__name__)
def test_what_clients_write_fills_no_table_beyond_its_bound(make: Callable[[], Table]) -> None:
    table = make()

    most = 0
    for number in range(TIMES * table.bound):
        table.fill(number)
        most = max(most, table.size())

    assert table.bound // 4 <= most <= table.bound
