"""All layouts, as a page of the documentation and as a table in the terminal."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from rich.markdown import Markdown
from rich.table import Table

from stepnet.layout.notation import Flat, Term
from stepnet.layout.places import regions
from stepnet.layout.record import Record
from stepnet.layout.registry import records
from stepnet.layout.semantics import Semantics
from stepnet.layout.sizes import Sizes
from stepnet.report.equations import equations

TITLES = {
    "stepnet": "stepnet",
    "torch": "PyTorch",
    "keras": "Keras",
    "keras2": "Keras 2 and tf.keras",
    "keras1": "Keras 1",
    "tf1": "TensorFlow 1",
    "cudnn": "cuDNN",
    "onednn": "oneDNN",
    "onnx": "ONNX",
    "openvino": "OpenVINO",
    "paddle": "PaddlePaddle",
    "mxnet": "MXNet",
    "flax": "Flax linen",
    "nnx": "Flax nnx",
    "haiku": "Haiku",
    "equinox": "Equinox",
    "mlx": "MLX",
    "mlx_early": "MLX, first releases",
    "tflite": "TFLite",
    "coreml": "Core ML",
    "ncnn": "ncnn",
    "chainer": "Chainer",
    "cntk": "CNTK",
    "dl4j": "Deeplearning4j",
    "darknet": "DarkNet",
    "haste": "haste",
    "flashrnn": "FlashRNN",
    "candle": "Candle",
    "burn": "Burn",
}
CELLS = {"gru": "GRU", "lstm": "LSTM", "rnn": "simple recurrences", "mgu": "minimal gated units"}
COLUMNS = ("layout", "W", "R", "biases", "reset", "update", "more")


def framework(record: Record) -> str:
    """The framework of a record, by its title."""
    name = record.name.partition(".")[0]
    return TITLES.get(name, name)


# ---- what a record says, in short --------------------------------------------------------------------------


def matrix(record: Record, parameter: str) -> str:
    """The gates of a matrix in order, with the shapes they lie in: `r z [K, 2H], n [K, H]`."""
    found = [term for term in record.terms() if term.parameter == parameter]
    shapes = [shape_text(term) for term in found]
    gates = [" ".join(term.gates) for term in found]
    if record.cell == "rnn":
        return shapes[0]
    if len(found) > 1 and len(set(shapes)) == 1:
        return f"{' '.join(gates)}, each {shapes[0]}"
    return ", ".join(f"{one} {shape}" for one, shape in zip(gates, shapes, strict=True))


def shape_text(term: Term) -> str:
    """The shape of a term in the letters of the field: [3H, I]."""
    letters = {"h": "H", "x": "I", "k": "K", "y": "P", "L": "L", "D": "D"}
    sizes: list[str] = []
    for axis in term.axes:
        number = "".join(str(len(atom.labels)) for atom in axis if len(atom.labels) > 1)
        rest = "".join(letters.get(atom.name, atom.name) for atom in axis if not atom.labels)
        sizes.append(number + rest or "1")
    interleaved = any(len(axis) > 1 and axis[-1].labels for axis in term.axes)
    return f"[{', '.join(sizes)}]" + (" interleaved" if interleaved else "") + (" raw" if term.raw else "")


def biases(record: Record) -> str:
    """Which biases there are: none, one, two, or two for some gates."""
    held = {side: "".join(t.gates for t in record.terms() if t.parameter == side) for side in "bd"}
    if not held["b"] and not held["d"]:
        return "none"
    if set(held["b"]) == set(held["d"]):
        return "b and d"
    if not held["b"] or not held["d"]:
        return "one" if held["b"] else "one, on the recurrent side"
    return f"b, and d of {' '.join(held['d'])}"


def more(record: Record) -> str:
    """Peepholes, projection, forget bias, and where numbers lie if not in arrays of their own."""
    found = [
        word
        for parameter, word in (("p", "peepholes"), ("P", "projection"), ("q", "its bias"))
        if any(term.parameter == parameter for term in record.terms())
    ]
    fixed = record.semantics.get("forget_bias")
    if isinstance(fixed, float):
        found.append(f"adds {fixed:g} to f")
    if "forget_bias" in record.settings():
        found.append("forget bias in the code")
    if record.semantics.get("coupled") is True:
        found.append("i = 1 - f")
    if any(isinstance(pattern, Flat) and not pattern.shape for pattern in record.patterns.values()):
        found.append("one vector")
    return ", ".join(found)


def sense(record: Record, name: str) -> str:
    """A field of the function: its value, or what it is set by."""
    setting = record.settings().get(name)
    if setting is not None:
        return f"`{setting.name}`"
    return str(record.semantics.get(name, getattr(Semantics(record.cell), name)))


# ---- the page ----------------------------------------------------------------------------------------------


def markdown() -> str:
    """The page of the documentation: a table for each cell, and every record in full."""
    lines = [INTRODUCTION.strip(), ""]
    for cell, title in CELLS.items():
        chosen = [record for record in records().values() if record.cell == cell]
        gated = cell in ("gru", "mgu")
        columns = [name for name in COLUMNS if gated or name not in ("reset", "update")]
        lines += [f"## Gate order of {title}" if cell != "rnn" else "## Simple recurrences", ""]
        lines += [f"| framework | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        lines += [row(record, columns) for record in chosen]
        lines.append("")
    lines += ["## Every layout in full", ""]
    for title, group in groupby(records().values(), key=framework):
        lines += [f"### {title}", ""]
        lines += [line for record in group for line in entry(record)]
    return "\n".join(lines).rstrip() + "\n"


def row(record: Record, columns: Iterable[str]) -> str:
    """One row of a table."""
    cells = {
        "layout": f"[`{record.name}`](#{anchor(record)})",
        "W": matrix(record, "W"),
        "R": matrix(record, "R"),
        "biases": biases(record),
        "reset": sense(record, "reset") if record.cell in ("gru", "mgu") else "",
        "update": sense(record, "update") if record.cell in ("gru", "mgu") else "",
        "more": more(record),
    }
    return f"| {framework(record)} | {' | '.join(cells[name] for name in columns)} |"


def anchor(record: Record) -> str:
    """The anchor that a heading with the record's name gets."""
    return record.name.replace(".", "")


def entry(record: Record) -> list[str]:
    """A record in full."""
    lines = [f"#### `{record.name}`", ""]
    lines += ["| array | where its numbers lie |", "|---|---|"]
    lines += [f"| `{full(record, name)}` | `{escaped(text)}` |" for name, text in record.arrays.items()]
    lines += ["", *equation_lines(record)]
    fixed = {name: value for name, value in record.semantics.items() if name not in record.settings()}
    if fixed:
        lines.append("- Fixed: " + ", ".join(f"{name} {value}" for name, value in fixed.items()) + ".")
    for name, setting in record.settings().items():
        usual = "asked for" if setting.usual is None else f"usually {setting.usual}"
        lines.append(f"- {name} is set as `{setting.name}`: {usual}.")
    if record.lone_bias == "d":
        lines.append("- One bias from elsewhere goes to d, and zeros to b.")
    lines += [f"- {note[0].upper()}{note[1:]}." for note in record.notes]
    lines += [f"- {line}" for line in evidence(record)]
    return [*lines, ""]


def equation_lines(record: Record) -> list[str]:
    """What it computes with all its arrays, as code; nothing where its settings have to be said."""
    usual = {name: setting.usual for name, setting in record.settings().items() if setting.usual is not None}
    if usual.keys() != record.settings().keys():
        return []
    blocks = {region.block for region in regions(record, Sizes(1, 1, 1 if record.projection else None))}
    return ["```text", *equations(record.settled(usual), blocks), "```", ""]


def evidence(record: Record) -> list[str]:
    """Where a record comes from, and how far it is verified."""
    run = (
        f"Verified: {record.evidence.run}."
        if record.evidence.run
        else "Not verified by running the framework."
    )
    versions = f" Holds for {record.evidence.versions}." if record.evidence.versions else ""
    return [f"Source: {record.evidence.source}.{versions}", run]


def full(record: Record, template: str) -> str:
    """The name of an array as the page shows it."""
    return template.removesuffix("?") + (" (may be missing)" if template.endswith("?") else "")


def escaped(text: str) -> str:
    """Text that can stand in a cell of a table."""
    return text.replace("|", "\\|")


INTRODUCTION = """
# The layouts of recurrent weights

Where each framework puts the numbers of a GRU, an LSTM or a simple recurrence, and what it makes of them.
This page is generated from the records that stepnet converts with (`stepnet layouts --markdown`); `stepnet
convert` moves weights between any two of them, and says what it did.

Letters: gates of an LSTM are i (input), f (forget), g (candidate of the cell, also called c, j or z) and o
(output); of a GRU r (reset), z (update, also u or i) and n (candidate, also h or c). W are the weights of
the inputs, R the recurrent ones, b the bias of the inputs and d the recurrent bias. I inputs, H hidden
units, K what recurs (H, or P where there is a projection), L layers, D directions.

A GRU that resets *after* the recurrent product computes n = tanh(W x + b + r (R h + d)), one that resets
*before* n = tanh(W x + b + R (r h) + d): these are different functions, and weights of one become weights
of the other only where R is diagonal. With an update gate that *keeps*, h' = z h + (1 - z) n; with one that
*writes*, h' = (1 - z) h + z n: the signs of the row of z turn one into the other, bit for bit.

The notation: `W[(g:rzn h) x]` is an array whose first axis is the gates r, z and n, in each the hidden
units, and whose second is the inputs; `/` puts one array on top of another, `|` beside it, `;` behind it in
one buffer; `{L D: ...}` repeats for each layer and direction; `~ h x` says that in the place of each gate
lies the buffer of an array with these axes. In names {L} is the layer and {D} the direction.
"""


# ---- the terminal ------------------------------------------------------------------------------------------


def table() -> Table:
    """All layouts, one a line."""
    found = Table(box=None, pad_edge=False)
    for column in ("layout", "framework", "W", "R", "biases", "reset", "update"):
        found.add_column(column)
    for record in records().values():
        gated = record.cell in ("gru", "mgu")
        fields = [sense(record, name).strip("`") if gated else "" for name in ("reset", "update")]
        found.add_row(
            record.name, framework(record), matrix(record, "W"), matrix(record, "R"), biases(record), *fields
        )
    return found


def as_json(record: Record) -> dict[str, Any]:
    """A record as plain values for machines."""
    settings = record.settings()
    return {
        "name": record.name,
        "framework": framework(record),
        "cell": record.cell,
        "arrays": dict(record.arrays),
        "semantics": {name: value for name, value in record.semantics.items() if name not in settings},
        "settings": {
            name: {
                "name": setting.name,
                "values": None if setting.values is None else {str(k): v for k, v in setting.values.items()},
                "usual": setting.usual,
            }
            for name, setting in settings.items()
        },
        "source": record.evidence.source,
        "verified": record.evidence.run,
        "versions": record.evidence.versions,
        "notes": list(record.notes),
    }


def full_text(record: Record) -> Markdown:
    """A record in full."""
    return Markdown("\n".join(entry(record)))
