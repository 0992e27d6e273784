"""Makes the manual as HTML: README.md, docs/ and the manual pages, each a file that needs no other but pictures.

usage: manual.py FOLDER     (a wheel has them below share/doc/mcproxy/html: hatch_hook.py)

Links between pages go to the HTML, those to other files of the project to their places below share/. One that leads
nowhere there ends the build.
"""

from __future__ import annotations

import html
import itertools
import posixpath
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from mcproxy.cli.docs import Anchors, Block, blocks  # noqa: E402

NAMES = {"README.md": "overview.html", "docs/README.md": "index.html", "CHANGELOG.md": "changelog.html"}
"""Of pages whose HTML is not named as they are."""
REFERENCE = {"man/mcproxy.8": "mcproxy.html", "man/mcproxy.yaml.5": "mcproxy.yaml.html"}
SHARED = {"docs/pictures/": "../docs/pictures/", "etc/": "../../../mcproxy/etc/"}
"""Folders of the project, and where they are from the HTML's."""

TEMPLATE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} - mcproxy</title>
<style>
body {{ margin: 0 auto; max-width: 60rem; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif;
  overflow-wrap: break-word; }}
pre, code {{ font-family: ui-monospace, monospace; font-size: 0.875rem; }}
code {{ background: rgb(127 127 127 / 0.15); border-radius: 0.2rem; padding: 0.1rem 0.2rem; }}
pre {{ background: rgb(127 127 127 / 0.12); border-radius: 0.3rem; padding: 0.75rem; overflow-x: auto; }}
pre code {{ background: none; padding: 0; }}
.table {{ overflow-x: auto; }}
table {{ border-collapse: collapse; }}
th, td {{ border: 1px solid rgb(127 127 127 / 0.4); padding: 0.3rem 0.6rem; text-align: left; vertical-align: top; }}
th:empty {{ border: 0; padding: 0; }}
img {{ max-width: 100%; }}
dd {{ margin: 0 0 0.5rem 2rem; }}
</style>
</head>
<body>
<nav><a href="index.html">mcproxy: the manual</a></nav>
<main>
{body}</main>
</body>
</html>
"""


def made() -> dict[str, str]:
    """Return the HTML by name. Raises ValueError if a link leads nowhere, and OSError."""
    sources = ["README.md", "CHANGELOG.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
    pages = {source: NAMES.get(source, Path(source).stem + ".html") for source in sources} | REFERENCE
    found = {name: of_markdown(source, pages) for source, name in pages.items() if source not in REFERENCE}
    return found | {name: of_manual_page(source) for source, name in REFERENCE.items()}


def of_markdown(source: str, pages: dict[str, str]) -> str:
    """Return a page of the project as HTML. Raises ValueError and OSError."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse((ROOT / source).read_text("utf-8"))
    title = ""
    anchors = Anchors()
    for token, content in itertools.pairwise(tokens):
        if token.type == "heading_open":
            title = title or _text(content)
            token.attrSet("id", anchors.of(_text(content)))
    for token in _all(tokens):
        for attribute in ("href", "src"):
            if attribute in token.attrs:
                token.attrSet(attribute, _target(source, str(token.attrs[attribute]), pages))
    body = markdown.renderer.render(tokens, markdown.options, {})
    body = body.replace("<table>", '<div class="table"><table>').replace("</table>", "</table></div>")
    return TEMPLATE.format(title=html.escape(title), body=body)


def _all(tokens: Sequence[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _all(token.children or ())


def _text(inline: Token) -> str:
    return "".join(child.content for child in inline.children or () if child.type in ("text", "code_inline"))


def _target(source: str, link: str, pages: dict[str, str]) -> str:
    path, mark, anchor = link.partition("#")
    if not path or "://" in path:
        return link
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if path in pages:
        return pages[path] + mark + anchor
    for folder, place in SHARED.items():
        if path.startswith(folder) and (ROOT / path).is_file():
            return place + path.removeprefix(folder)
    raise ValueError(f"{source} links {link}, which is not installed")


def of_manual_page(source: str) -> str:
    """Return a manual page as HTML. Raises OSError."""
    found = blocks((ROOT / source).read_text("utf-8"))
    title = f"{Path(source).stem}({Path(source).suffix[1:]})"
    return TEMPLATE.format(title=title, body=f"<h1>{title}</h1>\n" + "".join(_reference(found)))


def _reference(found: Sequence[Block]) -> Iterator[str]:
    anchors = Anchors()
    depth = 0  # of open lists; each has an open entry, which is a <dd> behind its first <dt>
    for block in found:
        item = block.kind == "item"
        while depth > block.depth + item:
            yield "</dd></dl>\n"
            depth -= 1
        if item:
            yield "</dd>\n" if depth == block.depth + 1 else "<dl>\n"
            depth = block.depth + 1
            yield f"<dt>{_inline(block)}</dt>\n<dd>"
        elif block.kind in ("section", "subsection"):
            level = 2 if block.kind == "section" else 3
            yield f'<h{level} id="{anchors.of(block.text)}">{_inline(block)}</h{level}>\n'
        elif block.kind == "literal":
            lines = "\n".join(run.text for run in block.runs)
            yield f"<pre><code>{html.escape(lines, quote=False)}\n</code></pre>\n"
        else:
            yield f"<p>{_inline(block)}</p>\n"
    yield "</dd></dl>\n" * depth


def _inline(block: Block) -> str:
    tags = {"code": "code", "argument": "var"}
    parts = []
    for run in block.runs:
        text = html.escape(run.text, quote=False)
        parts.append(f"<{tags[run.style]}>{text}</{tags[run.style]}>" if run.style else text)
    return "".join(parts)


def main(arguments: Sequence[str]) -> int:
    """Write them; return the exit status."""
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in made().items():
        (folder / name).write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
