"""What is counted of a subscription, for those who show it without ZMQ."""

import msgspec


class SubscriptionStatistics(msgspec.Struct, frozen=True):
    """Totals since the start; `last_seq` is -1 before the first batch."""

    last_seq: int
    batches: int
    lost_batches: int
    restarts: int
    replay_rounds: int
    malformed: int
    connected: bool
