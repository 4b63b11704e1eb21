"""Text to search tokens: the one function for the index and for queries.

- Words of alphabets: compatibility forms, case and accents (of Latin, Greek, Hebrew and Arabic letters) are folded, then
  the English stem is taken. `node.js`, `snake_case`, `libfoo-dev`, `don't` are one token and their parts further
  ones; `c++`, `c#`, `.net` are tokens, of which `c` is no part.
- Scripts without spaces (Han, kana, Hangul, Thai, Lao, Myanmar, Khmer): each character, each two neighbours, and
  jieba's words of three and more. Any two or more characters that stand verbatim in a run are then found by their
  pairs, whatever a dictionary thinks of the words around them.

Both sides must be made by the same version: `VERSION` belongs into the name of whatever stores tokens.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from functools import cache, lru_cache
from itertools import pairwise
from typing import NamedTuple

import rjieba
import Stemmer

from instep.text.graphemes import extends

VERSION = "words-v1"
MAX_TOKEN = 255  # longer words are cut, on both sides alike: indexes refuse or drop giant terms

_HAN = "\u2e80-\u2fdf\u3005\u3007\u3021-\u3029\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED = (
    _HAN
    + "\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"  # kana
    + "\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7fb\uffa0-\uffdc"  # Hangul
    + "\u3105-\u312f\u31a0-\u31bf\u3200-\u33ff"  # bopomofo; enclosed and squared forms
    + "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u1000-\u103f\u1050-\u109d\u1780-\u17d3"  # Thai to Khmer
)
_HAN_RUN = re.compile(f"[{_HAN}]{{3,}}")

_ASCII_WORD = re.compile(
    r"(?<![A-Za-z0-9_.])\.[A-Za-z][A-Za-z0-9]*(?:[-._'+]+[A-Za-z0-9]+)*(?:\+\+|#)?"
    r"|[A-Za-z0-9]+(?:(?:[-.']|_+|\++)[A-Za-z0-9]+)*(?:\+\+|#)?(?![A-Za-z0-9])"
)
_SPLIT = re.compile(r"[-._'+#]+")


class Token(NamedTuple):
    """`text` is normalised; `[start, end)` is its span in the source, in code points; `position` counts words: a whole
    and its first part share one, as do a character and the pair that it begins."""

    text: str
    start: int
    end: int
    position: int


def segment(text: str) -> list[Token]:
    """The tokens of a text, ordered by where they start. Never raises; nothing but separators gives none."""
    tokens: list[Token] = []
    add, new = tokens.append, tuple.__new__
    position = 0
    if text.isascii():
        for match in _ASCII_WORD.finditer(text):
            start, end = match.span()
            forms, steps = _word(text[start:end])
            if len(forms) == 1:  # nearly all words: the loop that decides the speed
                add(new(Token, (forms[0][0], start, end, position)))
            else:
                for form, a, b, step in forms:
                    add(new(Token, (form, start + a, start + b, position + step)))
            position += steps
        return tokens
    for match in _unicode_pattern().finditer(text):
        start = match.start()
        if match.lastgroup == "unspaced":
            position = _unspaced(text, start, match.end(), position, tokens)
            continue
        forms, steps = _word(match.group())
        for form, a, b, step in forms:
            tokens.append(Token(form, start + a, start + b, position + step))
        position += steps
    return tokens


def terms(query: str) -> list[list[str]]:
    """For each word of a query, the tokens which must all be in a document that has the word.

    A word with hyphens or apostrophes asks for its parts (`full-text` finds "full text"), one with other joints
    (`node.js`, `c++`, `snake_case`) for itself. A run without spaces asks for all pairs of neighbours, a single
    character of it for itself. Two words with equal tokens are given once.
    """
    groups: list[list[str]] = []
    for match in _unicode_pattern().finditer(query):
        if match.lastgroup == "unspaced":
            characters = [c for c, _, _ in _characters(query, match.start(), match.end())]
            group = [a + b for a, b in pairwise(characters)] or characters
        else:
            forms, _ = _word(match.group())
            whole, parts = forms[0][0], [form for form, _, _, _ in forms[1:]]
            loose = parts and not re.search(r"[._+#]", whole)
            group = parts if loose else [whole]
        group = list(dict.fromkeys(group))
        if group and group not in groups:
            groups.append(group)
    return groups


def query_tokens(query: str) -> frozenset[str]:
    """All tokens that `terms` asks for: what `highlight` marks."""
    return frozenset(token for group in terms(query) for token in group)


@cache
def _marks() -> str:
    """Combining characters as a class for `re`, whose \\w knows none of them."""
    ranges: list[list[int]] = []
    for code in (*range(0x300, 0x20000), *range(0xE0100, 0xE01F0)):
        if unicodedata.category(chr(code)) in ("Mn", "Mc", "Me") or code in (0x200C, 0x200D):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"\\U{a:08x}-\\U{b:08x}" for a, b in ranges)


@cache
def _unicode_pattern() -> re.Pattern[str]:
    marks = _marks()
    letter = rf"[^\W_{_UNSPACED}]"
    word = rf"{letter}(?:{letter}|[{marks}])*"
    joint = r"(?:[-.'’‐‑]|_+|\++)"
    return re.compile(
        rf"(?P<unspaced>[{_UNSPACED}][{_UNSPACED}{marks}]*)"
        rf"|(?<![\w.])\.(?=[^\W\d_{_UNSPACED}]){word}(?:{joint}{word})*(?:\+\+|#)?"
        rf"|{word}(?:{joint}{word})*(?:(?:\+\+|#)(?!{letter}))?"
    )


_Forms = tuple[tuple[tuple[str, int, int, int], ...], int]


def _word(word: str) -> _Forms:
    """(form, start, end, step) of a word and its parts, and how many positions it takes."""
    return _common_word(word) if len(word) < 64 else _any_word(word)


@lru_cache(maxsize=1 << 16)
def _common_word(word: str) -> _Forms:
    return _any_word(word)


def _any_word(word: str) -> _Forms:
    if word.isalnum():
        return ((_stem(_folded(word)), 0, len(word), 0),), 1
    plain = word.translate(_JOINTS)
    spans = []
    position = 0
    for match in _SPLIT.finditer(plain):
        spans.append((position, match.start()))
        position = match.end()
    spans.append((position, len(word)))
    spans = [(a, b) for a, b in spans if a < b]
    simple = len(spans) == 1 and spans[0] == (0, len(word))
    whole = _folded(plain)
    forms = [(_stem(whole) if simple or "'" in whole else whole[:MAX_TOKEN], 0, len(word), 0)]
    if not simple:
        quoted = "'" in plain
        for step, (a, b) in enumerate(spans):
            part = plain[a:b]
            letter_of_symbol = len(spans) == 1 and b - a == 1  # c++, c#
            tail = quoted and b - a < 3  # l'avion: avion, and nothing of don't but don
            form = _stem(_folded(part))
            if form and not letter_of_symbol and not tail and form != forms[0][0]:
                forms.append((form, a, b, step))
    return tuple(form for form in forms if form[0]), max(1, len(spans))


_JOINTS = str.maketrans("’‐‑", "'--")
_LOCAL = threading.local()  # a stemmer must not be shared by threads


def _folded(word: str) -> str:
    if word.isascii():
        return word.lower()
    word = unicodedata.normalize("NFKC", word).casefold()
    folded: list[str] = []
    base = ""
    for character in unicodedata.normalize("NFKD", word):
        if unicodedata.category(character) != "Mn":
            base = character
        elif base < "\u0400" or "\u0590" <= base < "\u0900":
            continue
        folded.append(character)
    return unicodedata.normalize("NFC", "".join(folded)).strip("\u200c\u200d")


def _stem(word: str) -> str:
    word = word[:MAX_TOKEN]
    if not word.isascii() or len(word) < 4 or not word.replace("'", "").isalpha():
        return word
    stemmer = getattr(_LOCAL, "stemmer", None)
    if stemmer is None:
        stemmer = _LOCAL.stemmer = Stemmer.Stemmer("english", 0)
    return str(stemmer.stemWord(word))


def _characters(text: str, start: int, end: int) -> list[tuple[str, int, int]]:
    """Normalised characters of a run with their spans; marks stay with the character that they belong to."""
    run = text[start:end]
    if unicodedata.is_normalized("NFKC", run) and not any(map(extends, run)):
        return [(c, i, i + 1) for i, c in enumerate(run, start)]
    characters: list[tuple[str, int, int]] = []
    first = start
    for i in range(start + 1, end + 1):
        if i == end or not extends(text[i]) or i - first >= 16:
            form = unicodedata.normalize("NFKC", text[first:i]).casefold()
            # A squared form is several characters with one span; a character with its marks stays one.
            pieces = [form] if i - first > 1 else [c for c in form if not c.isspace()]
            characters.extend((piece, first, i) for piece in pieces)
            first = i
    return characters


def _unspaced(text: str, start: int, end: int, position: int, tokens: list[Token]) -> int:
    characters = _characters(text, start, end)
    words: dict[int, list[tuple[str, int]]] = {}
    run = "".join(c for c, _, _ in characters)
    if len(run) == len(characters):
        for match in _HAN_RUN.finditer(run):
            for word, a, b in rjieba.tokenize(match.group(), "search"):
                if b - a > 2:
                    words.setdefault(match.start() + a, []).append((word, match.start() + b))
    add, new, last = tokens.append, tuple.__new__, len(characters) - 1
    for i, (character, a, b) in enumerate(characters):
        add(new(Token, (character, a, b, position + i)))
        if i < last:
            following, _, b = characters[i + 1]
            add(new(Token, (character + following, a, b, position + i)))
        if i in words:
            for word, stop in words[i]:
                add(new(Token, (word, a, characters[stop - 1][2], position + i)))
    return position + len(characters)
