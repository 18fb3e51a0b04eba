"""What a user is told to do, each kind of engine in its own options."""

from collections.abc import Callable, Sequence

from kvmesh.core.engines.engine import Engine
from kvmesh.core.engines.registry import ENGINES


def how_to_publish() -> str:
    """Return which option starts each kind with KV events."""
    titles: dict[str, list[str]] = {}
    for title, option in _each_kind(lambda one: one.words.publish):
        titles.setdefault(option, []).append(title)
    return _titled([(" and ".join(names), option) for option, names in titles.items()])


def how_to_cache() -> str:
    """Return how each kind is started with a prefix cache, the first kind as the usual one."""
    (_, words), *others = _each_kind(lambda one: one.words.cache)
    return f"start it {words} ({_titled(others)})"


def how_to_enlarge_blocks() -> str:
    """Return how to start the kinds that may have blocks of one token."""
    return "; ".join(words for _, words in _each_kind(lambda one: one.words.larger_blocks))


def how_to_report_cached() -> str:
    """Return which option makes each kind report cached tokens."""
    return _titled(_each_kind(lambda one: one.words.report_cached))


def who_returns_ids() -> str:
    """Return from which version on each kind returns a prompt's token ids."""
    since = _each_kind(lambda one: one.prompt_ids.since if one.prompt_ids else "")
    return " or ".join(map(" ".join, since))


def whose_events() -> str:
    """Return whose KV events are understood."""
    return " or ".join(f"{title}'s" for title, _ in _each_kind(lambda one: one.words.publish))


def _each_kind(words: Callable[[Engine], str]) -> list[tuple[str, str]]:
    """Return title and words of every kind that has any."""
    return [(one.title, found) for one in ENGINES.values() if (found := words(one))]


def _titled(words: Sequence[tuple[str, str]]) -> str:
    return ", ".join(map(": ".join, words))
