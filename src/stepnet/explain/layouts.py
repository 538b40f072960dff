"""Layouts as text: a table of all layouts, and the full description of one."""

from typing import Any

from rich.markdown import Markdown
from rich.table import Table

from stepnet.explain.equations import equations
from stepnet.layout.notation import Term
from stepnet.layout.places import regions
from stepnet.layout.record import Record
from stepnet.layout.registry import records
from stepnet.layout.semantics import Semantics
from stepnet.layout.sizes import Sizes

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


def framework(record: Record) -> str:
    """Returns the title of the framework of a layout, such as "PyTorch" for torch.gru."""
    name = record.name.partition(".")[0]
    return TITLES.get(name, name)


# ---- a record in short -------------------------------------------------------------------------------------


def matrix(record: Record, parameter: str) -> str:
    """Formats the gates of the weight matrix of a layout (a framework's arrangement of weights) in their
    order, with the shape of each array or part of an array: `r z [K, 2H], n [K, H]`.

    parameter: "W" (weights of the input) or "R" (recurrent weights).
    """
    terms = [term for term in record.terms() if term.parameter == parameter]
    shapes = [shape_text(term) for term in terms]
    gates = [" ".join(term.gates) for term in terms]
    if record.cell == "rnn":
        return shapes[0]
    if len(terms) > 1 and len(set(shapes)) == 1:
        return f"{' '.join(gates)}, each {shapes[0]}"
    return ", ".join(f"{names} {shape}" for names, shape in zip(gates, shapes, strict=True))


def shape_text(term: Term) -> str:
    """Formats the shape of a matrix of a layout (a framework's arrangement of weights) in capital letters,
    such as [3H, I] for 3 gates. After it stands "interleaved" if the gates vary fastest along an axis, and
    "raw" if the buffers of gates are stored as arrays of another shape.
    """
    letters = {"h": "H", "x": "I", "k": "K", "y": "P", "L": "L", "D": "D"}
    sizes: list[str] = []
    for axis in term.axes:
        number = "".join(str(len(atom.labels)) for atom in axis if len(atom.labels) > 1)
        rest = "".join(letters.get(atom.name, atom.name) for atom in axis if not atom.labels)
        sizes.append(number + rest or "1")
    interleaved = any(len(axis) > 1 and axis[-1].labels for axis in term.axes)
    return f"[{', '.join(sizes)}]" + (" interleaved" if interleaved else "") + (" raw" if term.raw else "")


def biases(record: Record) -> str:
    """Describes the biases of a layout (a framework's arrangement of weights), b, added to the products with
    the inputs, and d, added to the products with the memory: "none", "one" if it has only one of them, "b and
    d", or "b, and d of" some gates.
    """
    held = {side: "".join(t.gates for t in record.terms() if t.parameter == side) for side in "bd"}
    if not held["b"] and not held["d"]:
        return "none"
    if set(held["b"]) == set(held["d"]):
        return "b and d"
    if not held["b"] or not held["d"]:
        return "one" if held["b"] else "one, on the recurrent side"
    return f"b, and d of {' '.join(held['d'])}"


def semantics_text(record: Record, name: str) -> str:
    """Formats one property of the function that layers with a layout of weights compute, such as where a GRU
    resets.

    The text is the property's value, or, if the framework lets users choose it, the framework's name of that
    setting in backquotes. record: the layout. name: the property, a field of `Semantics`, such as "reset".
    """
    setting = record.settings().get(name)
    if setting is not None:
        return f"`{setting.name}`"
    return str(record.semantics.get(name, getattr(Semantics(record.cell), name)))


def summary(record: Record) -> dict[str, str]:
    """Summarises a layout (the arrangement of a recurrent layer's weights in arrays) as a row of the table of
    layouts: a text for each column, "W", "R", "biases", "reset" and "update".
    """
    gated = record.cell in ("gru", "mgu")
    matrices = {parameter: matrix(record, parameter) for parameter in "WR"}
    senses = {name: semantics_text(record, name) if gated else "" for name in ("reset", "update")}
    return {**matrices, "biases": biases(record), **senses}


# ---- a record in full -------------------------------------------------------------------------------------


def entry(record: Record) -> list[str]:
    """Formats the full description of a layout (a framework's arrangement of weights) as lines of Markdown:
    arrays, equations, fixed and chosen semantics, notes, sources.
    """
    lines = [f"#### `{record.name}`", ""]
    lines += ["| array | where its numbers lie |", "|---|---|"]
    lines += [f"| `{array_name(name)}` | `{escaped(text)}` |" for name, text in record.arrays.items()]
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
    """Formats the equations of a layout's cell (a layout is an arrangement of weights) as Markdown, with the
    usual values of its settings (the semantics that users choose); empty if a setting has no usual value.
    """
    usual = {name: setting.usual for name, setting in record.settings().items() if setting.usual is not None}
    if usual.keys() != record.settings().keys():
        return []
    blocks = {region.block for region in regions(record, Sizes(1, 1, 1 if record.projection else None))}
    return ["```text", *equations(record.settled(usual), blocks), "```", ""]


def evidence(record: Record) -> list[str]:
    """Formats as sentences where the facts about a layout come from, and how they were verified."""
    run = (
        f"Verified: {record.evidence.run}."
        if record.evidence.run
        else "Not verified by running the framework."
    )
    versions = f" Holds for {record.evidence.versions}." if record.evidence.versions else ""
    return [f"Source: {record.evidence.source}.{versions}", run]


def array_name(template: str) -> str:
    """Returns the name of an array of a layout (a framework's arrangement of weights) as it is shown: a `?`
    at its end becomes "(may be missing)". template: the name in the layout, perhaps with that `?`.
    """
    return template.removesuffix("?") + (" (may be missing)" if template.endswith("?") else "")


def escaped(text: str) -> str:
    """Escapes text for a cell of a Markdown table."""
    return text.replace("|", "\\|")


# ---- the terminal ------------------------------------------------------------------------------------------


def table() -> Table:
    """Makes a table of all layouts for the terminal, which `stepnet layouts` prints."""
    listing = Table(box=None, pad_edge=False)
    for column in ("layout", "framework", "W", "R", "biases", "reset", "update"):
        listing.add_column(column)
    for record in records().values():
        cells = (cell.strip("`") for cell in summary(record).values())
        listing.add_row(record.name, framework(record), *cells)
    return listing


def as_json(record: Record) -> dict[str, Any]:
    """Converts the description of a layout (a framework's arrangement of weights) to plain values for
    `stepnet layouts --json`: names, arrays, semantics, settings and evidence.
    """
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
    """Formats the full description of a layout for the terminal, as `stepnet layouts NAME` prints it."""
    return Markdown("\n".join(entry(record)))
