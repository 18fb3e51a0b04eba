from array import array

import msgspec

from kvmesh.core.prompts.remote_prefixes import RemotePrefixes, prefix_chain

A, B, C = (msgspec.Raw(f'{{"role":"user","content":"{name}"}}'.encode()) for name in "abc")


def packed(*ids: int) -> bytes:
    return array("I", ids).tobytes()


def test_the_longest_known_beginning_is_found() -> None:
    prefixes = RemotePrefixes()
    chain = prefix_chain((b"m", b""), [A, B, C])

    assert prefixes.find(chain) == (0, b"")
    assert prefixes.learn(chain[:1], [1, 2])
    assert prefixes.find(chain) == (1, packed(1, 2))
    assert prefixes.learn(chain[:2], [1, 2, 3])
    assert prefixes.find(chain) == (2, packed(1, 2, 3))
    assert prefixes.knows(chain[1])
    assert not prefixes.knows(chain[2])
    counted = prefixes.statistics()
    assert (counted.hits, counted.misses, counted.unstable, counted.known) == (2, 1, 0, 2)


def test_other_chats_models_and_tools_share_nothing() -> None:
    chains = [
        prefix_chain((b"m", b""), [A, B]),
        prefix_chain((b"m2", b""), [A, B]),
        prefix_chain((b"m", b"[]"), [A, B]),
        prefix_chain((b"", b"m"), [A, B]),
        prefix_chain((b"m", b""), [B, A]),
    ]

    assert (len({chain[1] for chain in chains}), prefix_chain((b"m", b""), [])) == (5, [])


def test_a_template_that_changes_earlier_messages_is_noticed() -> None:
    prefixes = RemotePrefixes()
    chain = prefix_chain((b"m",), [A, B, C])
    prefixes.learn(chain[:1], [1, 2])

    assert not prefixes.learn(chain, [1, 9, 9])
    assert (prefixes.statistics().unstable, prefixes.find(chain)) == (1, (3, packed(1, 9, 9)))
