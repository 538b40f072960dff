"""The results of every conversion of the corpus, and the page of the documentation that lists them.

    python tests/peers/corpus/results.py > docs/corpus.md

A result is a word: "run by NAME" where the target's framework gave what the source's did; "run by stepnet"
where there is none to ask; "refused LETTER" for what cannot be; "wrong NUMBER" for what is not right yet.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SAVED = HERE / "saved" / "results.json"
FRAMEWORKS = ("torch", "keras", "tensorflow", "onnx", "openvino", "jax", "paddle", "chainer")
STEPNET = "stepnet"
Results = dict[str, dict[str, dict[str, str]]]  # by file, target and layer, "" being the whole file


@dataclass(frozen=True)
class Refusal:
    """A reason why something is refused: how the error says it, and how the page does."""

    said: str
    reason: str


REFUSALS = {
    "a": Refusal(
        "the file does not say that it takes them",
        "a model runs its layers in a row, and the file does not say that each takes what the one before "
        "gives: `--stack` does",
    ),
    "b": Refusal(
        "it takes .* instead: |takes something else, or more, which would be lost",
        "a model runs its layers in a row, and something lies between them",
    ),
    "c": Refusal("a raw buffer holds one recurrent module", "a raw buffer is of one layer alone"),
    "d": Refusal(r"has no layout for a (gru|rnn)", "TFLite has no GRU, and Equinox no simple recurrence"),
    "e": Refusal(
        "the target has no place for d_n", "the target has no recurrent bias of n, and it is not zero"
    ),
    "f": Refusal(
        "resets (after|before) the recurrent product",
        "one side resets before the recurrent product, and the other after it",
    ),
    "g": Refusal(r"activation is \w+, and .* has", "the target has other activations"),
    "h": Refusal(
        "cell_clip is 10", "the source clips its cells: `--semantics cell_clip=0` where nothing reaches that"
    ),
    "i": Refusal("has a projection", "the target has no projection"),
    "j": Refusal(
        "returns its outputs (last step first|each at its own step)",
        "the new file would give the outputs of a layer that runs from the end in another order",
    ),
    "k": Refusal(
        "merges its directions by", "the target has no other way to merge directions than side by side"
    ),
    "l": Refusal(
        r"the cell of \S+ is (gru|lstm|rnn), and that of",
        "one layout is asked for of layers of several kinds",
    ),
    "m": Refusal("have the same number of inputs", "layers of one array have as many inputs as each other"),
    "o": Refusal(
        "as an ordinary layer, and it is",
        "a model would run as an ordinary layer what is one direction of a Bidirectional, or lies in a "
        "TimeDistributed",
    ),
}

# What is known not to be right: file, target, what is said of it, and what is the matter.
FAULTS: tuple[tuple[str, str, str, str], ...] = ()


class UnknownResultError(AssertionError):
    """A refusal or a fault that no table has."""


def word(file: str, target: str, refusal: str, wrong: str, judge: str) -> str:
    """The result of a conversion; raises for a refusal or a fault that no table has."""
    said = refusal or wrong
    for number, (of_file, of_target, pattern, _) in enumerate(FAULTS, 1):
        if all(map(re.fullmatch, (of_file, of_target), (file, target))) and re.search(pattern, said):
            return f"wrong {number}"
    letters = [letter for letter, one in REFUSALS.items() if re.search(one.said, refusal)]
    if wrong or (refusal and not letters):
        raise UnknownResultError(f"{file} -> {target}: {said}")
    return f"refused {letters[0]}" if letters else f"run by {judge}"


def words(rows: Any) -> tuple[Results, list[str]]:
    """The result of every conversion, and those that no table has. rows: file, conversion, what is wrong."""
    found: Results = {}
    unknown: list[str] = []
    for file, one, wrong in rows:
        judge = " and ".join(judge.name for judge in one.judges) or STEPNET
        try:
            said = word(one.specimen.file, one.target.title, one.refusal, wrong, judge)
        except UnknownResultError as error:
            unknown.append(f"{error}")
            continue
        found.setdefault(file, {}).setdefault(one.target.title, {})[one.layer] = said
    return found, unknown


def load() -> dict[str, Any]:
    """The saved values: specimens by framework, versions, and results."""
    return json.loads(SAVED.read_text(encoding="utf-8"))


def save(saved: dict[str, Any]) -> None:
    """Keeps what was found."""
    SAVED.write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")


# ---- the page ----------------------------------------------------------------------------------------------

HEAD = """# Which files were converted to which

Files that frameworks saved themselves, with what lies between the recurrent layers of a model, were
converted to every kind of file; each new file was loaded and run by its own framework, next to what the
framework of the old file had computed (`make test-peers`; a part of it in `make test`). `make test-peers
ARGS=--save` saves the results, of which `python tests/peers/corpus/results.py > docs/corpus.md` makes this
page.

- ✓ the framework of the new file gives what that of the old one gave, but for rounding in float32
- ○ there is no such framework to ask: so do the equations of the new file's layout, run by stepnet
- a, b ... refused, for the reason below
- ✗ known not to be right yet, as said below

Where something of a file is refused, what became of its layers by themselves (`--module`) stands behind the
slash.
"""


def sign(word: str) -> str:
    """A result in short."""
    kind, _, rest = word.rpartition(" ")
    return {"refused": rest, "wrong": f"✗{rest}"}.get(kind, "○" if rest == STEPNET else "✓")


def cell(layers: dict[str, str]) -> str:
    """The entry of the table for a file and a target."""
    whole = sign(layers[""])
    each = sorted({sign(result) for layer, result in layers.items() if layer})
    return whole if each in ([], [whole]) else f"{whole} / {' '.join(each)}"


def markdown(saved: dict[str, Any]) -> str:
    """The page."""
    lines = [HEAD]
    results: Results = saved["results"]
    for framework, files in saved["files"].items():
        lines += [f"## Saved by {versions_text(saved['sources'][framework])}\n"]
        targets = list(next(iter(results.values())))
        lines += ["| file | " + " | ".join(f"{one}" for one in targets) + " |"]
        lines += ["|---|" + "---|" * len(targets)]
        for file, what in files.items():
            cells = [cell(results[f"{framework}/{file}"][target]) for target in targets]
            lines.append(f"| `{file}`: {what} | {' | '.join(cells)} |")
        lines.append("")
    lines += [f"Run by {versions_text(saved['judges'])}.\n", "## What is refused\n"]
    lines += [f"- {letter}: {one.reason}" for letter, one in REFUSALS.items()]
    faults = {sign(word) for file in results.values() for one in file.values() for word in one.values()}
    known = [f"- ✗{n}: {row[-1]}" for n, row in enumerate(FAULTS, 1) if f"✗{n}" in faults]
    return "\n".join(lines + (["", "## What is not right yet\n", *known] if known else [])) + "\n"


def versions_text(versions: dict[str, str]) -> str:
    """Versions in words."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


if __name__ == "__main__":
    print(markdown(load()), end="")
