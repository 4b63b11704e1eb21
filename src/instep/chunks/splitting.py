"""Splitters by their code in a target: `256t` (tokens of the model), `1000c` (characters), `256t/32` with overlap."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from instep.errors import Refused
from instep.text.split import Measure, Splitter, runes

_CODE = re.compile(r"(\d{1,6})([tc])(?:/(\d{1,5}))?")

DEFAULT_TOKENS = "256t"
DEFAULT_CHARACTERS = "1000c"


def splitter_of(code: str, tokens: Measure | None, reserved: int = 0) -> Splitter:
    """The splitter that a target names. `tokens` counts tokens of its model, where its tokenizer is at hand;
    `reserved`, in the splitter's unit, is kept free for the prefix and the model's own marks. Refused for a code that
    cannot be read or that needs a tokenizer that is not there."""
    match = _CODE.fullmatch(code)
    if match is None:
        raise Refused(
            f"splitter {code!r}: it takes a budget and its unit, t for tokens or c for characters",
            hint="--splitter 256t, --splitter 1000c, or with overlap --splitter 1000c/100",
        )
    budget, unit, overlap = int(match[1]), match[2], int(match[3] or 0)
    if budget - reserved <= overlap or budget - reserved < 1:
        raise Refused(
            f"splitter {code!r}: its budget must be over its overlap and the {reserved} kept for the prefix"
        )
    if unit == "c":
        named = Splitter.of_runes(budget, overlap)
    elif tokens is None:
        raise Refused(
            f"splitter {code!r} counts tokens, and the tokenizer of this model is not at hand",
            hint=f"count characters: --splitter {DEFAULT_CHARACTERS}",
        )
    else:
        named = Splitter.of_tokens(budget, tokens, overlap)
    return Splitter(named.name, budget - reserved, named.measure, overlap)


def tokens_of(count: Callable[[str], int]) -> Measure:
    """A splitter's measure from a model's count of one text, which includes the model's own marks."""
    marks = count("")

    def measure(texts: Sequence[str]) -> list[int]:
        return [count(text) - marks for text in texts]

    return measure


def whole_limit(splitter: Splitter) -> int:
    """Characters up to which a stripped, clean text is surely one chunk, and need not be measured: `split` gives the
    same, and takes 20 times as long (test_short_texts_are_one_chunk)."""
    # A tokenizer may make several tokens of a character (it takes Hangul and accents apart), never more than 4.
    return splitter.budget if splitter.measure is runes else splitter.budget // 4
