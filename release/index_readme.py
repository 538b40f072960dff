"""The text that a package index shows: README, with links that work outside of the repository.

    [Benchmarks](docs/benchmarks.md)  ->  [Benchmarks](SOURCE/blob/v0.1.0/docs/benchmarks.md)
    ![a GRU](docs/pictures/gru.png)   ->  ![a GRU](SOURCE/raw/v0.1.0/docs/pictures/gru.png)

Hatchling runs `CustomMetadataHook` when it builds (pyproject.toml). The address is the `Source` of
`[project.urls]`. Where that is not set, links are left relative, and `release/release_check.py` refuses to
publish.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<path>(?!https?:|#|mailto:)[^)\s]+)\)")


def with_whole_links(text: str, source: str, version: str) -> str:
    """Returns Markdown whose relative links are addresses of a version's files in a repository.

    text: Markdown. source: the address of the repository, which has `blob` and `raw` pages as GitHub's have.
    version: the version, whose tag is `v` before it.
    """

    def whole(link: re.Match[str]) -> str:
        kind = "raw" if link["picture"] else "blob"
        return f"{link['picture']}[{link['text']}]({source.rstrip('/')}/{kind}/v{version}/{link['path']})"

    return LINK.sub(whole, text)


class CustomMetadataHook(MetadataHookInterface):
    """Sets the `readme` of the project's metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Adds README to `metadata`, with whole links if the project says where its source is."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        source = metadata.get("urls", {}).get("Source")
        if source is not None:
            text = with_whole_links(text, source, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
