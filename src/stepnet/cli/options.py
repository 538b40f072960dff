"""Options that several commands share, and the values that their texts stand for."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else, to stdout.")]
Model = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="A model: .stepnet .pt .pth .pt2 .nemo .safetensors .keras .h5 .onnx .npz .tflite .msgpack "
        ".params .pdparams .xml .mlpackage, an index of shards, a folder of Orbax or torch.distributed, a "
        "SavedModel, a TensorFlow checkpoint, or a buffer with its .json.",
    ),
]
Several = list[str] | None
Part = Annotated[
    Several,
    typer.Option(
        "--module",
        "--prefix",
        metavar="NAME",
        help="The name of a recurrent layer to use; give several in their order.",
    ),
]
From = Annotated[
    Several,
    typer.Option(
        "--from",
        metavar="[MODULE=]LAYOUT",
        help="The layout of FILE or of one module, or the framework that wrote it.",
    ),
]
SizeOptions = Annotated[
    Several,
    typer.Option(
        "--size", metavar="NAME=N", help="A size that the shapes do not determine, such as hidden=3."
    ),
]
SemanticsOptions = Annotated[
    Several,
    typer.Option(
        "--semantics",
        metavar="[MODULE:]FIELD=VALUE",
        help="A setting that FILE does not specify: reset=after, or encoder:reset=after.",
    ),
]
RecurrentOnly = Annotated[
    bool,
    typer.Option(
        "--recurrent-only",
        help="Use only the recurrent layers of FILE, and list the rest; --module implies it.",
    ),
]
StackOption = Annotated[
    bool,
    typer.Option("--stack", help="Treat the layers as a stack: each takes the outputs of the one before it."),
]
DropOption = Annotated[
    Several,
    typer.Option(
        "--drop", metavar="NAME", help="The name of an array of a recurrent layer that may be left out."
    ),
]
DtypeOption = Annotated[
    str | None,
    typer.Option("--dtype", help="The dtype to convert to: float64, float32, float16 or bfloat16."),
]
StepsOption = Annotated[
    str | None,
    typer.Option(
        "--steps",
        metavar="any",
        help="any: state that no number in FILE depends on the number of steps that it fixes.",
    ),
]
InputsOption = Annotated[
    Several,
    typer.Option(
        "--inputs",
        metavar="INPUT",
        help="Parquet or Arrow files to run instead of random sequences: a file, folder or glob.",
    ),
]
ColumnOption = Annotated[
    str | None, typer.Option(help="The list column of --inputs; not needed if there is only one.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace the output file if it exists.")]
Engine = Annotated[str, typer.Option(help="The engine to run on; auto takes the fastest one that can run.")]


def check_column(column: str | None, inputs: list[str] | None) -> None:
    """Raises `BadParameter` if a column is given without the files of --inputs that have it."""
    if column is not None and not inputs:
        raise typer.BadParameter("--column names a column of --inputs: give --inputs too")


def choice(
    layout: list[str] | None,
    module: list[str] | None,
    size: list[str] | None,
    semantics: list[str] | None,
    stack: bool = False,
    drop: list[str] | None = None,
) -> Any:
    """Makes a `LayoutChoice`, which says how to read a model file, from options that several commands share.

    layout: texts of --from. module: of --module. size: of --size. semantics: of --semantics. drop: of --drop.
    stack: whether the layers are a stack.
    """
    whole_file = [text for text in layout or [] if "=" not in text]
    if len(whole_file) > 1:
        raise typer.BadParameter(f"--from names two layouts for the whole file: {' and '.join(whole_file)}")
    layouts = dict(pairs([text for text in layout or [] if "=" in text], "--from"))
    from stepnet.layout.files.choice import LayoutChoice

    sizes = {name: number(name, value, int) for name, value in pairs(size or [], "--size")}
    fields = dict(parse_setting(name, value) for name, value in pairs(semantics or [], "--semantics"))
    single, several = (module[0], ()) if module and len(module) == 1 else (None, module or ())
    return LayoutChoice(
        whole_file[0] if whole_file else None, single, sizes, fields, stack, layouts, drop or (), several
    )


# Fields of `Semantics`, by the names of frameworks.
FIELDS_AS_CALLED = {
    "activation": "candidate_activation",
    "nonlinearity": "candidate_activation",
    "recurrent_activation": "gate_activation",
}


def parse_setting(name: str, text: str) -> tuple[str, Any]:
    """Parses one --semantics option (a property of the function that weights parametrise): returns (name of
    the field of `Semantics`, after "MODULE:" if given; its value).

    name, text: the parts before and after the "=". A framework's name for the field is translated; a field
    without a list of values takes a number.
    """
    from stepnet.layout.registry import meant
    from stepnet.layout.semantics import VALUES, Semantics
    from stepnet.model.merge import MERGES

    module, sign, called = name.rpartition(":")
    field, known = FIELDS_AS_CALLED.get(called, called), ["merge", *(each.name for each in fields(Semantics))]
    if field not in known:
        raise typer.BadParameter(
            f"no setting is called {called!r}{meant(called, known)}; there are {', '.join(known)}"
        )
    values = {**VALUES, "merge": tuple(MERGES)}.get(field)
    value = {str(known): known for known in values}.get(text, text) if values else number(field, text, float)
    return f"{module}{sign}{field}", value


def pairs(texts: list[str], option: str) -> list[tuple[str, str]]:
    """Splits texts NAME=VALUE of an option at the last =, as the name of a module may contain one. Raises
    `BadParameter`, with the option, for a text without =.
    """
    for text in texts:
        if "=" not in text:
            raise typer.BadParameter(f"{option} is NAME=VALUE, not {text!r}")
    split_texts = (text.rpartition("=") for text in texts)
    return [(name.strip(), value.strip()) for name, _, value in split_texts]


def number(name: str, value: str, kind: type[int] | type[float]) -> Any:
    """Parses VALUE of an option NAME=VALUE as int or float (`kind`), or raises `BadParameter`."""
    try:
        return kind(value)
    except ValueError:
        raise typer.BadParameter(f"{name} is a number, not {value!r}") from None
