"""Writes docs/models.md: the models of the corpus, and which of them run whole.

python tests/conformance/whole/page.py
"""

from pathlib import Path

from tests.conformance.whole.corpus import EXAMPLES, KINDS
from tests.conformance.whole.refused import REFUSED

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
HEAD = """\
# Models that run whole

Models that frameworks made and saved, as people build them. They were chosen before stepnet ran any of
them. `make test` and `make test-long` read each file without its framework, run it over single sequences and
over a batch, and compare the outputs with those of the framework, within the tolerance of the dtype. A model
that is refused raises an error with the words in the last column.
`python -m tests.conformance.whole.page` writes this page.

| kind | models | whole | refused |
|---|---|---|---|
"""
TABLE = """
## {kind}

Saved by {frameworks}.

| model | what it is | |
|---|---|---|
"""


def verdict(title: str) -> str:
    """Returns the last column of a model: whole, or why not."""
    return f"refused: {REFUSED[title]}" if title in REFUSED else "whole"


def page() -> str:
    """Returns the text of the page."""
    kinds = {kind: [one for one in EXAMPLES if one.kind == kind] for kind in KINDS}
    made = {kind: found for kind, found in kinds.items() if found}
    text = HEAD
    for title, found in [*((KINDS[kind], found) for kind, found in made.items()), ("all", EXAMPLES)]:
        refused = sum(one.title in REFUSED for one in found)
        text += f"| {title} | {len(found)} | {len(found) - refused} | {refused} |\n"
    for kind, found in made.items():
        frameworks = ", ".join(sorted({one.framework for one in found}))
        text += TABLE.format(kind=KINDS[kind], frameworks=frameworks)
        text += "".join(f"| `{one.name}` | {one.about} | {verdict(one.title)} |\n" for one in found)
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
