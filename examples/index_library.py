"""The index as a library: events in, cached prefix of every worker out. No NATS, no HTTP."""

from kvmesh import (
    ROOT,
    ApproxKvIndexer,
    KvIndexer,
    Removed,
    Stored,
    pack_hashes,
    sequence_hashes,
)

BLOCK_SIZE = 16


def exact() -> None:
    """Follow what two workers store and evict."""
    prompt = list(range(64))
    hashes = sequence_hashes(prompt, BLOCK_SIZE)
    indexer = KvIndexer(BLOCK_SIZE)
    indexer.apply_event("worker-0", Stored(ROOT, pack_hashes(hashes)))
    indexer.apply_event("worker-1", Stored(ROOT, pack_hashes(hashes[:2])))
    print("held      ", indexer.find_matches_for_request(prompt))
    indexer.apply_event("worker-0", Removed(pack_hashes(hashes[3:])))
    print("evicted   ", indexer.find_matches_for_request(prompt))

    warm = KvIndexer(BLOCK_SIZE)
    warm.restore(indexer.dump())
    print("restored  ", warm.find_matches_for_request(prompt), warm.digest() == indexer.digest())


def approximate() -> None:
    """Without events: believe for two minutes that a worker keeps what was sent to it."""
    prompt = list(range(48))
    indexer = ApproxKvIndexer(BLOCK_SIZE, ttl_s=120.0)
    indexer.process_routing_decision_for_request(prompt, "worker-1", now=0.0)
    print("after 60 s", indexer.find_matches_for_request(prompt, now=60.0))
    print("after 121 s", indexer.find_matches_for_request(prompt, now=121.0))


if __name__ == "__main__":
    exact()
    approximate()
