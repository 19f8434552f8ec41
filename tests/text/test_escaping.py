"""Untrusted texts are shown, and have no effect."""

from raysearch.text.escaping import csv_cell, markdown_code, markdown_line, visible


def test_control_characters_are_escaped() -> None:
    shown = {
        "plain, ‘quoted’ 中文 🙂\nline": "plain, ‘quoted’ 中文 🙂\nline",
        "\x1b[2J\x1b]0;title\x07": "\\x1b[2J\\x1b]0;title\\x07",
        "\x9b31m\x7f": "\\x9b31m\\x7f",
        "a\u202egpj.exe": "a\\u202egpj.exe",
        "over\rwritten\ttab": "over written tab",
    }
    assert {text: visible(text) for text in shown} == shown
    assert all(visible(text) == text for text in shown.values())


def test_markdown_is_shown_as_it_is() -> None:
    assert markdown_line("[a](http://b)\n# <img src=x> `c`|d") == r"\[a\](http://b) # &lt;img src=x&gt; \`c\`\|d"


def test_code_cannot_close_its_own_span() -> None:
    assert markdown_code("raysearch study a=b") == "`raysearch study a=b`"
    assert markdown_code("a=`<img>`\n\nb=``") == "``` a=`<img>`  b=`` ```"


def test_a_cell_computes_nothing() -> None:
    harmless = ["-0.5", "-3", "{1,2}", "a=b", "", None, -0.5, 3]
    assert [csv_cell(value) for value in harmless] == harmless
    for formula in ("=1+1", "+1", "-1+cmd|' /C calc'!A0", "@SUM(A1)", "\t=1"):
        assert csv_cell(formula) == f"'{formula}"
