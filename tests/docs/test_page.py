"""The reader of pages finds what they have."""

from __future__ import annotations

from tests.docs.page import Command, blocks, commands, links, unknown_blocks

PAGE = """# A page

    mcproxy check -c a \\
        --strict
    kubectl get pods    # all of them

Text with a [link](other.md#there) and [another](https://example.com/).

    /etc/mcproxy/mcproxy.yaml:9:40: what is wrong

```yaml
version: 1
```

```sh
# a comment
mcproxy version
```

    rm-everything now
"""


def test_commands_of_a_page() -> None:
    assert commands(PAGE) == [
        Command(3, "mcproxy check -c a \\\n    --strict"),
        Command(5, "kubectl get pods    # all of them"),
        Command(17, "mcproxy version"),
    ]


def test_blocks_that_are_no_commands() -> None:
    assert [block.text for block in blocks(PAGE) if block.language == "yaml"] == ["version: 1\n"]
    assert [block.text for block in unknown_blocks(PAGE)] == ["rm-everything now\n"]


def test_links_to_files() -> None:
    assert links(PAGE) == ["other.md#there"]
