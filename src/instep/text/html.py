"""HTML to text: what a reader sees, with block boundaries as line breaks.

Blocks become paragraphs, list items and table rows lines, table cells stand apart by a tab; inline tags break
nothing. Content that was escaped once more than expected is unescaped exactly once, and only if the whole looks so.
"""

from __future__ import annotations

import html
import re

from selectolax.lexbor import LexborHTMLParser, LexborNode

from instep.text.clean import clean

# fmt: off
_DROPPED = frozenset((
    "head", "iframe", "noembed", "noframes", "noscript", "object", "script", "style", "template",
))
_BLOCKS = frozenset((
    "address", "article", "aside", "blockquote", "body", "caption", "center", "details", "dialog",
    "div", "dl", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5",
    "h6", "header", "hgroup", "hr", "html", "main", "menu", "nav", "ol", "p", "pre", "section",
    "summary", "table", "tbody", "tfoot", "thead", "ul",
))
_LINES = frozenset((
    "br", "dd", "dt", "legend", "li", "option", "tr",
))
_CELLS = frozenset((
    "td", "th",
))
_INLINE = frozenset((
    "a", "abbr", "audio", "b", "bdi", "bdo", "big", "button", "cite", "code", "del", "dfn", "em",
    "font", "i", "img", "input", "ins", "kbd", "label", "mark", "picture", "q", "s", "samp", "select",
    "small", "span", "strike", "strong", "sub", "sup", "svg", "textarea", "tt", "u", "var", "video",
    "wbr",
))
_UNCLOSED = frozenset((
    "dd", "dt", "li", "p", "td", "th", "tr",
))  # may stand without an end tag in valid HTML
_VOID = frozenset((
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr",
))
# fmt: on
_KNOWN = _DROPPED | _BLOCKS | _LINES | _CELLS | _INLINE

# A name, then nothing or attributes of which one has a value: `<a and b>` of a formula has none; `<stdio.h>`,
# `<me@example.org>` and `a < b` are no tags at all.
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)(?:\s[^<>=]*=[^<>]*|\s*/?)>")
_ANY_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/<>]*)[^<>]*>")
_MAX_DEPTH = 2000  # the parser's time grows with the square of the depth: 50,000 nested tags took it 17 s
_DOCTYPE = re.compile(r"\s*(?:(?><!--.*?-->)\s*)*+<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL)
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
_ESCAPED_TAG = re.compile(r"&lt;/?[a-zA-Z]", re.IGNORECASE)
_INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad"
_BLANK_LINE = re.compile(r"\n[ \t]*\n")

_NONE, _SPACE, _TAB, _LINE, _PARAGRAPH = range(5)
_SEPARATORS = ("", " ", "\t", "\n", "\n\n")


def looks_like_html(text: str) -> bool:
    """Is this HTML rather than text that holds a few angle brackets? Conservative: in doubt it is text."""
    if "<" not in text:
        return False
    if _DOCTYPE.match(text):
        return True
    opened: set[str] = set()
    unclosed = 0
    for match in _TAG.finditer(text):
        closing, name = match[1], match[2].lower()
        if name not in _KNOWN:
            continue
        if closing:
            if name in opened:
                return True
        elif name == "br":
            return True
        else:
            opened.add(name)
            if name in _UNCLOSED:
                unclosed += 1
                if unclosed > 1 or not text[: match.start()].strip():
                    return True
    return False


def to_plain(text: str) -> str:
    """Text of unknown kind, as plain text: HTML is converted, anything else only cleaned."""
    text = clean(text)
    return html_to_text(text) if looks_like_html(text) or _looks_escaped(text) else text


def html_to_text(text: str) -> str:
    """The text of an HTML document or fragment, '' if there is nothing to see. Never raises.

    Text without any tag keeps its shape; only its entities are decoded.
    """
    text = clean(text)
    if _looks_escaped(text):
        text = clean(html.unescape(text))
    if not any(match[2].lower() in _KNOWN for match in _TAG.finditer(text)) and not _DOCTYPE.match(text):
        decoded = clean(_ENTITY.sub(lambda match: html.unescape(match[0]), text))
        return decoded if _visible(decoded) else ""
    writer = _Writer()
    if text.count("<") > _MAX_DEPTH and _too_deep(bare := _without_comments(text)):
        _scan(bare, writer)
    else:
        root = LexborHTMLParser(text).root
        if root is not None:
            _walk(root, writer)
    return clean("".join(writer.parts))


def _looks_escaped(text: str) -> bool:
    """No tag of its own, and HTML as soon as it is unescaped once."""
    if not _ESCAPED_TAG.search(text):
        return False
    if any(match[2].lower() in _KNOWN for match in _TAG.finditer(text)):
        return False
    first = text.lstrip()[:4].lower() == "&lt;"
    return looks_like_html(html.unescape(text)) and (first or "&lt;/" in text)


def _visible(text: str) -> bool:
    return bool(text.strip() and any(not c.isspace() and c not in _INVISIBLE for c in text))


class _Writer:
    """Collects text; breaks are remembered and written only between two pieces of text."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.pending = _NONE
        self.inside_item = 0
        self.inside_pre = 0
        self.cells: list[int] = []  # how much stood there when each open cell began
        self.rows: list[int] = []  # how many cells each open row has had

    def block(self, level: int) -> None:
        if self.cells and self.cells[-1] == len(self.parts):
            return  # a block at the start of a cell breaks nothing
        if level == _PARAGRAPH and (self.inside_item or self.cells):
            level = _LINE
        self.pending = max(self.pending, level)

    def line_break(self) -> None:
        nested = self.inside_item or self.cells
        self.block(_PARAGRAPH if self.pending >= _LINE and not nested else _LINE)

    def text(self, text: str) -> None:
        if not text:
            return
        if self.inside_pre:
            if _visible(text):
                lead = len(text) - len(text.lstrip("\n"))
                if lead:
                    self.pending = max(self.pending, _LINE if lead == 1 else _PARAGRAPH)
                body = text.strip("\n")
                self._write(body)
                if text.endswith("\n"):
                    self.pending = max(self.pending, _LINE)
            else:
                self.pending = max(self.pending, _LINE if "\n" in text else _SPACE)
            return
        words = text.replace("\u00ad", "").split()
        if text[0].isspace():
            self.pending = max(self.pending, _SPACE)
        if words:
            collapsed = " ".join(words)
            if _visible(collapsed):
                self._write(collapsed)
        if words and text[-1].isspace():
            self.pending = max(self.pending, _SPACE)

    def _write(self, text: str) -> None:
        if self.parts:
            self.parts.append(_SEPARATORS[self.pending])
        self.parts.append(text)
        self.pending = _NONE


def _walk(root: LexborNode, writer: _Writer) -> None:
    """Depth first without recursion: nesting has no limit of its own."""
    stack: list[tuple[LexborNode, bool]] = [(root, False)]
    while stack:
        node, leaving = stack.pop()
        tag = node.tag or ""
        if leaving:
            _leave(tag, writer)
            continue
        if tag == "-text":
            content = node.text_content or ""
            parent = node.parent
            if parent is not None and parent.tag == "body" and _BLANK_LINE.search(content):
                # Text between tags at the top, Markdown say: its paragraphs are paragraphs.
                for i, paragraph in enumerate(_BLANK_LINE.split(content)):
                    if i:
                        writer.block(_PARAGRAPH)
                    writer.text(paragraph)
            else:
                writer.text(content)
            continue
        if tag in _DROPPED or (tag.startswith(("-", "!")) and node is not root):
            continue
        _enter(tag, writer)
        stack.append((node, True))
        children = []
        child = node.first_child
        while child is not None:
            children.append(child)
            child = child.next
        stack.extend((child, False) for child in reversed(children))


def _without_comments(text: str) -> str:
    pieces, position = [], 0
    while (start := text.find("<!--", position)) >= 0:
        pieces.append(text[position:start])
        end = text.find("-->", start + 4)
        position = len(text) if end < 0 else end + 3
    return "".join((*pieces, text[position:]))


def _too_deep(text: str) -> bool:
    """Could the tree be deeper than the parser takes in reasonable time? Counts end tags that are missing, too."""
    depth = 0
    for match in _ANY_TAG.finditer(text):
        name = match[2].lower()
        if name in _VOID or name in _UNCLOSED:
            continue
        depth += -1 if match[1] else 1
        if depth > _MAX_DEPTH:
            return True
    return False


def _scan(text: str, writer: _Writer) -> None:
    """The same output for well-formed HTML without a tree: tags in the order in which they stand."""
    position, dropped = 0, ""
    for match in _ANY_TAG.finditer(text):
        if not dropped:
            writer.text(html.unescape(text[position : match.start()]))
        position = match.end()
        name = match[2].lower()
        if dropped:
            dropped = "" if match[1] and name == dropped else dropped
        elif match[1]:
            _leave(name, writer)
        elif name in _DROPPED:
            dropped = name
        else:
            _enter(name, writer)
    if not dropped:
        writer.text(html.unescape(text[position:]))


def _enter(tag: str, writer: _Writer) -> None:
    if tag == "br":
        writer.line_break()
    elif tag in _BLOCKS:
        writer.block(_PARAGRAPH)
        writer.inside_pre += tag == "pre"
    elif tag in _LINES:
        writer.block(_LINE)
        writer.inside_item += tag in ("li", "dd")
        if tag == "tr":
            writer.rows.append(0)
    elif tag in _CELLS:
        if writer.rows:
            if writer.rows[-1] and writer.parts:
                writer.pending = _TAB
            writer.rows[-1] += 1
        writer.cells.append(len(writer.parts))


def _leave(tag: str, writer: _Writer) -> None:
    if tag in _BLOCKS:
        writer.inside_pre = max(0, writer.inside_pre - (tag == "pre"))
        writer.block(_PARAGRAPH)
    elif tag in _LINES and tag != "br":
        writer.inside_item = max(0, writer.inside_item - (tag in ("li", "dd")))
        if tag == "tr" and writer.rows:
            writer.rows.pop()
        writer.block(_LINE)
    elif tag in _CELLS and writer.cells:
        writer.cells.pop()
