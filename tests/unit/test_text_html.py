"""HTML becomes what a reader sees; text that only holds angle brackets is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instep.text.html import html_to_text, looks_like_html, to_plain


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<p>Jav<b>aScript</b></p><li>x", "JavaScript\n\nx"),
        ("<h1>T</h1><div>a<br>b<br><br>c</div>", "T\n\na\nb\n\nc"),
        ("<ul><li>a<ul><li>b</li></ul></li><li><p>c</p></li></ul><p>d", "a\nb\nc\n\nd"),
        ("<table><tr><td><p>a</p><td>b</tr><tr><th>c<th>d</table>", "a\tb\nc\td"),
        ("<pre>a\n  b\n</pre>q", "a\n  b\n\nq"),
        ("<head><title>t</title></head><script>x</script><style>y</style><noscript>n</noscript>z", "z"),
        ("<template><p>x</p></template>y<p>z", "y\n\nz"),
        ("<p>R&amp;D &lt;b&gt; &eacute;&#8364;</p>", "R&D <b> é€"),
        ("<p>a\0b\ud800&#1;</p>", "ab\ufffd"),
        ("<p>&nbsp;</p>", ""),
        ("<p>&nbsp;\u200b</p><div> </div>", ""),
        ("&nbsp;", ""),
        ("", ""),
        ("one\n\n<b>two</b>\n\nthree", "one\n\ntwo\n\nthree"),
        ("<p>a<!-- <p>no</p> --></p>b", "a\n\nb"),
        ("AT&amp;T\n\n a < b", "AT&T\n\n a < b"),
    ],
)
def test_conversion(markup: str, text: str) -> None:
    assert html_to_text(markup) == text


@pytest.mark.parametrize(
    "text",
    [
        "a < b and c > d, if x<y or y>z",
        "#include <stdio.h>\nint main() {}",
        "From: Ann <ann@example.org>, <bob@example.org>",
        "vector<int> and List<String>, <a and b>",
        "use <b> for bold",
        "see <https://example.org/a?b=c>",
        "line one\n\nline two &lt;p&gt; &amp; more",
    ],
)
def test_plain_text_is_not_html_and_passes_unharmed(text: str) -> None:
    assert not looks_like_html(text)
    assert to_plain(text) == text


@pytest.mark.parametrize(
    "markup",
    ["<p>x", "a<br>b", "<b>x</b>", "<!DOCTYPE html><x>", "<A HREF='x'>y</A>", "<li>a<li>b", "<div>\n</div>"],
)
def test_html_is_recognised(markup: str) -> None:
    assert looks_like_html(markup)


def test_content_escaped_once_too_often_is_unescaped_exactly_once() -> None:
    assert html_to_text("&lt;p&gt;R&amp;amp;D &amp;lt;b&amp;gt;&lt;/p&gt;") == "R&D <b>"
    assert html_to_text("<p>Write &lt;p&gt;this&lt;/p&gt;</p>") == "Write <p>this</p>"


def test_deep_nesting_gives_its_text() -> None:
    # The parser's time is quadratic in the depth: 50,000 levels would take it a quarter of a minute.
    assert html_to_text("<div>" * 50_000 + "<script>no</script>x &amp; y<!-- <p> --><p>z") == "x & y\n\nz"


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "<p>",
                "</p>",
                "<td>",
                "</tr>",
                "<tr>",
                "<table>",
                "</table>",
                "<li>",
                "</li>",
                "<br>",
                "<pre>",
                "</pre>",
                "<!--",
                "-->",
                "&lt;",
                "&#0;",
                " ",
                "x",
                "\n",
                "<script>",
                "</script>",
                "<b",
                "�",
                "\x00",
            ]
        )
    ).map("".join)
)
def test_never_raises_and_is_trimmed(markup: str) -> None:
    text = html_to_text(markup)
    assert "\0" not in text
    text.encode("utf-8")
    to_plain(markup)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["alpha", "beta", "gamma"]), min_size=1),
    st.sampled_from(["p", "div", "li", "h2"]),
)
def test_no_word_is_lost(words: list[str], tag: str) -> None:
    assert html_to_text("".join(f"<{tag}>{w}</{tag}>" for w in words)).split() == words
