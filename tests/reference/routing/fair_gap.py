"""The bound that docs/workloads/fairness.md promises."""


def largest_gap(
    quantum: int,
    largest: int,
    *,
    unheard: int | None = None,
    deaths: int = 0,
    lost: int = 0,
    wrong: int = 0,
) -> int:
    """Return how much more service, in tokens, one tenant may get than another over any time in
    which both wait and either could be placed whenever one is.

    `largest` is what a request costs at most, `unheard` what siblings charge a tenant before it is
    heard (None: there are none), `wrong` by how much the output reserved for a tenant's running
    requests is wrong. Replicas started anew after `deaths` know no positions, and what the dead had
    charged untold, `lost`, nobody counts. A tenant whose requests only a busy worker may take has
    a claim to one quantum, whatever the others get meanwhile.
    """
    spread = 2 * quantum + largest
    ends = 2 * spread if unheard is None else 3 * (spread + unheard)
    return ends + deaths * spread + lost + wrong
