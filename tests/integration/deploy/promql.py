"""Which series a PromQL expression reads, and which labels it needs of each."""

import re
from typing import Final

_WORDS: Final = {
    *("by", "without", "on", "ignoring", "group_left", "group_right"),
    *("and", "or", "unless", "offset", "bool", "inf", "nan"),
    *("sum", "min", "max", "avg", "count", "topk", "bottomk", "quantile"),
}
_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_RANGE: Final = re.compile(r"\[[^\]]*\]")
_SERIES: Final = re.compile(r"(?<![\w:$.])([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?(?!\s*\(|[\w:])")
_GROUPED: Final = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
_LABEL: Final = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")


def labels_by_series(expression: str) -> dict[str, set[str]]:
    """Return the labels that matchers and groupings of an expression name, by series.

    The labels of a grouping count for all series between the parentheses that it is about.
    """
    bare = _RANGE.sub("", _TEXT.sub('""', expression))
    bare = re.sub(r"group_(?:left|right)\s*\([^)]*\)", "", bare)
    found: dict[str, set[str]] = {}
    lists = [match.span(1) for match in _GROUPED.finditer(bare)]
    for match in _SERIES.finditer(bare):
        name = match[1]
        inside = any(start <= match.start() < end for start, end in lists)
        if not inside and name not in _WORDS and not _within_braces(bare, match.start()):
            found.setdefault(name, set()).update(_LABEL.findall(match[2] or ""))
    for match in _GROUPED.finditer(bare):
        start, end = _parentheses_of(bare, *match.span())
        names = {label.strip() for label in match[1].split(",")} - {""}
        for name in found:
            if re.search(rf"(?<![\w:]){re.escape(name)}(?![\w:])", bare[start:end]):
                found[name] |= names
    return found


def matched_words(expression: str) -> set[tuple[str, str, str]]:
    """Return each word that a matcher of an expression names, with its series and label; words of
    patterns are those between `|`, if they are no patterns themselves.
    """
    return {
        (series[1], label, word)
        for series in re.finditer(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}", expression)
        for label, words in re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', series[2])
        for word in words.split("|")
        if re.fullmatch(r"[\w-]+", word)
    }


def _within_braces(text: str, at: int) -> bool:
    return text.rfind("{", 0, at) > text.rfind("}", 0, at)


def _parentheses_of(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span of what a grouping at `start` to `end` is about: the parentheses behind it,
    else those before it.
    """
    after = re.match(r"\s*\(", text[end:])
    step, at = (1, end + after.end() - 1) if after else (-1, text.rindex(")", 0, start))
    depth, first = 0, at
    while True:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return min(first, at), max(first, at) + 1
        at += step
