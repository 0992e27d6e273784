"""HTML of which every text is escaped."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from mcproxy.proxy.admin.page.markup import Markup, join, tag, text


class Reader(HTMLParser):
    """Reads back what a browser would see."""

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.data = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((name, attributes))

    def handle_data(self, data: str) -> None:
        self.data += data


printable = st.text().filter(str.isprintable)


@given(printable, printable)
def test_a_text_comes_out_as_it_went_in_and_is_never_a_tag(content: str, value: str) -> None:
    read = Reader(tag("p", content, title=value))
    assert read.tags == [("p", [("title", value)])]
    assert read.data == content


@given(st.text())
def test_what_cannot_be_seen_is_replaced(content: str) -> None:
    assert all(char.isprintable() or char == "\n" for char in text(content))


def test_the_direction_of_text_cannot_be_turned() -> None:
    assert text("a\u202egnp.exe\x1b[1m") == "a\N{REPLACEMENT CHARACTER}gnp.exe\N{REPLACEMENT CHARACTER}[1m"


def test_markup_is_taken_as_it_is_and_none_is_nothing() -> None:
    assert join(tag("b", 1), None, Markup("<i></i>"), "<") == "<b>1</b><i></i>&lt;"


def test_attributes() -> None:
    assert tag("a", class_="x", aria_label='"', hidden=True, open=False, title=None) == (
        '<a class="x" aria-label="&quot;" hidden></a>'
    )
    assert tag("meta", name="a") == '<meta name="a">'
