"""Reads a model file as a model: everything that the file computes, or a refusal that names the rest.

.stepnet                             the model that `model.save` wrote
.onnx, a program of Paddle           the whole graph
.keras with an LSTM and no more      its recurrent layers, which are all that the model computes
.keras with a Dense above the LSTM   the whole graph
.pt2 with a Linear above the LSTM    the whole graph
.keras with a Lambda below it          refused: shift (Lambda)
a state dict                         refused: it holds weights and no architecture
any file, recurrent_only=True        its recurrent layers, and the names of everything that was left out
"""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np

from stepnet.compiler.net.ir import all_nodes
from stepnet.compiler.values.arguments import LIBRARY, file_path
from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError, InputError, LayoutError, ModelError, named
from stepnet.layout.files.account import Account, check_merges, check_stack, listed, notes_on_infinities
from stepnet.layout.files.choice import LayoutChoice, check_agrees
from stepnet.layout.files.contents import is_paddle_program
from stepnet.layout.files.formats import kind, read
from stepnet.layout.files.model import FileContents, Module, bare
from stepnet.layout.files.paths import existing
from stepnet.layout.files.stacks import stacked
from stepnet.layout.files.verified import weights
from stepnet.layout.options import option
from stepnet.model.compose import Layer, Stack, recurrences
from stepnet.model.graph.graph import Graph
from stepnet.model.stored.kept import load as load_kept
from stepnet.model.stored.read import is_stored
from stepnet.onnx import load as load_onnx
from stepnet.paddle import load as load_paddle

FIXING = (".onnx", ".pt2", ".keras", ".h5", ".hdf5", ".tflite", ".xml")
"""The endings of files that may fix the number of steps, with numbers that may have been computed from it;
programs of Paddle may too.
"""
STATEFUL = "(stateful)"
"""The text in a note on a module that keeps its state from one call to the next."""
PLAIN = "a plain stack"
"""The model that the recurrent layers of a file become here, in messages that begin with the file."""


@dataclass(frozen=True)
class FileModel:
    """A model that was read from a file.

    Attributes:
        model: A `Graph`, or recurrent layers.
        left_out: The names of the layers, operators and arrays of the file that the model lacks. Empty unless
            only the recurrent layers were asked for.
        notes: Further facts, by module: NaN in weights, and facts in the file that recurrent layers alone do
            not express.
        path: The file.
    """

    model: Graph | Layer
    left_out: tuple[str, ...] = ()
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    path: str = ""


def load_model(
    path: str | Path,
    recurrent_only: bool,
    choice: LayoutChoice,
    axes: Mapping[str, str] | None,
    any_steps: bool,
) -> Any:
    """Reads the model in a file as `stepnet.load` returns it; see that for the arguments and errors."""
    if axes is not None:
        if recurrent_only or choice != LayoutChoice():
            raise InputError("axes= is for the whole graph of a file, and not for recurrent layers alone")
        return graph_of_axes(file_path(path, "model"), axes, any_steps)
    return read_model(path, choice, recurrent_only=recurrent_only, any_steps=any_steps).model


def read_model(
    path: str | Path,
    choice: LayoutChoice | None = None,
    *,
    recurrent_only: bool = False,
    any_steps: bool = False,
) -> FileModel:
    """Reads the model in a file: the whole graph of an ONNX or PaddlePaddle file, and of a file of
    torch.export, Keras, TFLite or OpenVINO with other layers than recurrent ones; else the recurrent layers.

    Raises `LayoutError` for choices together with a whole graph, and for other layers beside recurrent ones.

    choice: the user's choices of layouts (arrangements of weights), sizes and modules (recurrent layers in
        the file). If it has a module or an order of modules, this implies `recurrent_only`.
    recurrent_only: whether to read only the recurrent layers of a file of any kind; the result then has the
        names of all else in the file in `left_out`.
    any_steps: whether the user states that no number in the file depends on the number of steps; `InputError`
        for a file of a kind that is run over any number of steps.
    """
    file, stated = file_path(path, "model"), choice or LayoutChoice()
    if any_steps and not may_fix_steps(file):
        raise InputError(
            f"{file}: {option('steps')} is for files of {', '.join(FIXING)} and programs of "
            "PaddlePaddle, which may fix the number of steps"
        )
    if file.suffix == ".so":
        raise FileError(f"{file}: this is a library of machine code: {LIBRARY}")
    if is_stored(file):
        if recurrent_only or stated != LayoutChoice():
            raise LayoutError(f"{file}: a saved model has no layouts, and is loaded whole")
        return FileModel(load_kept(str(existing(file))), path=str(file))
    if recurrent_only or stated.module is not None or stated.order:
        return recurrent_layers(file, stated)
    graph = whole_graph(file, any_steps)
    if graph is None:
        return only_recurrent(file, stated, any_steps)
    if stated != LayoutChoice():
        raise LayoutError(
            f"{file}: its whole graph is read, and what is said of recurrent layers applies to these alone: "
            f"say {option('recurrent only')} for them"
        )
    return graph_model(graph, file)


def graph_model(graph: Graph, file: Path, facts: Mapping[str, tuple[str, ...]] | None = None) -> FileModel:
    """Returns the model of a whole graph that was read from a file, with a note on NaN in it. facts: further
    notes for the user, by module (recurrent layers in the file).
    """
    notes = notes_on_nan(graph)
    return FileModel(graph, notes={**({"": notes} if notes else {}), **(facts or {})}, path=str(file))


def notes_on_nan(graph: Graph) -> tuple[str, ...]:
    """Returns a note on the sequences of a graph's file for which results are NaN, and one that names the
    weights and constants with NaN; empty if there are none.
    """
    program, names = graph.program, list[str]()
    model: Any = graph.model
    steps, notes = graph.only_steps, list[str]()
    stated, others = getattr(model, "steps", None), False
    if steps is not None:
        notes.append(
            f"the file is for {steps} steps; a model that is written from it gives NaN for sequences of "
            f"other lengths, because {model.advice}"
        )
    places = program.net.inputs[len(program.net.inputs) - len(program.params) :]
    for place, array in zip(places, program.params, strict=True):
        if np.isnan(array).any():
            names.append(program.net.nodes[place].name or f"weights {list(array.shape)}")
    for node in all_nodes(program.net):
        if node.operation == "constant" and np.isnan(node.attributes["value"].value).any():
            if stated is not None and not node.type.shape and not node.name:
                others = others or steps is None  # the results for sequences of other lengths
                continue
            names.append(node.name or f"a constant {list(node.type.shape)}")
    if others:
        notes.append(
            f"the file is for {stated} steps, of which the model makes features: results for sequences of "
            "other lengths may be NaN"
        )
    return (*notes, *([f"NaN is in {listed(names)}"] if names else []))


def may_fix_steps(file: Path) -> bool:
    """Tells whether files of this kind may fix the number of steps."""
    return file.suffix.lower() in FIXING or is_paddle_program(file)


def whole_graph(file: Path, any_steps: bool = False) -> Graph | None:
    """Reads the graph in a file of ONNX or PaddlePaddle, which is read whole; None for files of other kinds.

    any_steps: whether no number in the file depends on the number of steps.

    Raises `FileError` for a .pdiparams file, which has only the parameters of a program.
    """
    steps = "any" if any_steps else None
    if file.suffix.lower() == ".onnx":
        return load_onnx(file, steps=steps)
    if is_paddle_program(file):
        return load_paddle(file, steps=steps)
    if file.suffix == ".pdiparams":
        raise FileError(
            f"{existing(file)}: these are the parameters of a program: give the .json or .pdmodel"
        )
    return None


def graph_of_axes(file: Path, axes: Mapping[str, str], any_steps: bool) -> Graph:
    """Reads the whole graph of a file whose inputs have axes that the user states.

    Raises `InputError` for a file whose format says what the axes of inputs are, and `FileError` for one
    without a program.

    axes: the axes by the names of inputs. any_steps: whether no number in the file depends on its steps.
    """
    steps = "any" if any_steps else None
    if file.suffix.lower() == ".onnx":
        return load_onnx(file, axes=axes, steps=steps)
    if is_paddle_program(file):
        return load_paddle(file, axes=axes, steps=steps)
    if file.suffix.lower() != ".pt2":
        raise InputError(
            f"{file}: axes= is for files of .onnx and .pt2 and programs of PaddlePaddle; those of "
            "other kinds say what the axes of their inputs are"
        )
    graph = kind(existing(file)).graph(file, any_steps=any_steps, axes=axes)
    if graph is None:
        raise FileError(f"{file}: it has no program, or several")
    return graph


def is_graph(file: Path) -> bool:
    """Returns whether `whole_graph` reads a file of this name: a file of ONNX or PaddlePaddle."""
    return file.suffix.lower() == ".onnx" or is_paddle_program(file)


# ---- files whose only layers are recurrent -----------------------------------------------------------------


@dataclass(frozen=True)
class LastOutput:
    """A model function that returns the last output of layers for each sequence."""

    layer: Layer

    @property
    def __name__(self) -> str:
        """The name in messages of this object, which stands for a model function."""
        return "last_output"

    def __call__(self, x: Any, params: Any) -> Any:
        """Runs the layers; returns the last output, at the end of each direction. `params` is None."""
        return self.layer(x, last_only=True)[0]


def only_recurrent(file: Path, choice: LayoutChoice, any_steps: bool = False) -> FileModel:
    """Reads a file that specifies nothing but recurrent layers, or whose other layers are supported; raises
    `LayoutError` for other files.

    The model is the layers, or a graph around them if the file takes only the last output of the top layer.

    choice: the user's choices of layouts (arrangements of weights), sizes and modules. any_steps: whether no
    number in the file depends on the number of steps.
    """
    model = read(file, choice.layout, choice.layouts)
    unread = bool(model.unread(choice.drop))
    readable = bool(model.modules) and not unread
    if readable:
        check_sizes(model, choice.sizes)
    around = layers_around(model)
    is_more = not unread and bool(around or beyond_a_stack(model)) and choice == LayoutChoice()
    if is_more and (graph := graph_around(file, bool(around), any_steps)) is not None:
        return graph_model(graph, file, kept_states(model))
    if readable:
        check_whole(model)
    if around and not model.modules and (missing := without_rows(model, around)):
        hints = "".join(f"; {own}" for own in model.layers if ": " in own)
        raise LayoutError(f"{file}: it has {listed(missing)}, which stepnet does not run{hints}")
    selected = choice.checked_modules(model)
    check_agrees(model, selected)
    check_whole(model)
    with named(str(file)):
        check_alone(model, selected)
        modules = stacked(selected, choice.stack)
        check_stack(modules, PLAIN, choice.stack)
        layer = layer_of(modules)
    notes = {module.name: note for module in modules if (note := notes_on_infinities(module))}
    if not modules[-1].last_only:
        return FileModel(layer, notes=notes, path=str(file))
    inputs = recurrences(layer, str(file))[0].inputs
    return FileModel(Graph(LastOutput(layer), inputs=inputs), notes=notes, path=str(file))


def graph_around(file: Path, has_others: bool, any_steps: bool = False) -> Graph | None:
    """Reads the graph of a file of layers; None if there is none. A file of recurrent layers alone that a
    graph refuses has none: its layers are read, or refused with the reason why they are no plain stack.

    has_others: whether the file has other layers than recurrent ones. any_steps: whether no number in it
    depends on the number of steps.
    """
    try:
        return kind(file).graph(file, any_steps=any_steps)
    except ModelError:
        if has_others:
            raise
        return None


def kept_states(model: FileContents) -> dict[str, tuple[str, ...]]:
    """Returns the notes on those modules (recurrent layers in a file) that keep their states from one call to
    the next, by the names of the modules. A graph that was read from the file needs these notes too; other
    notes on modules are left out.

    model: the contents of the file.
    """
    kept = {module.name: tuple(note for note in module.notes if STATEFUL in note) for module in model.modules}
    return {name: notes for name, notes in kept.items() if notes}


def check_sizes(model: FileContents, stated: Mapping[str, int]) -> None:
    """Raises `LayoutError` for a module (recurrent layers in a file) whose arrays do not fit its layout (a
    framework's arrangement of weights).

    A module that several layouts fit is not checked.

    model: the contents of the file.
    stated: sizes that the user gives because the file does not, by name.
    """
    for module in model.modules:
        if len(module.layouts) == 1:
            with named(": ".join(filter(None, (model.path, bare(module.name))))):
                replace(module, sizes={**stated, **module.sizes}).solved_sizes()


def check_whole(model: FileContents) -> None:
    """Raises `LayoutError` if a file has other layers than recurrent ones, or does not specify its layers.

    Layers that return their input unchanged, such as Dropout, do not count. The message says how to read the
    recurrent layers alone.

    model: the contents of the file.
    """
    names = [
        f"{bare(module.name) or 'the layer'} ({' or '.join(module.layouts)})" for module in model.modules
    ]
    alone = f"say {option('recurrent only')} for {listed(names)} alone"
    if model.unspecified:
        own = kind(Path(model.path)).title == "Keras"
        whole = "of model.save('model.keras')" if own else "of torch.export (.pt2) or ONNX"
        others = f"; it also has {listed(model.rest)}" if model.rest else ""
        raise LayoutError(
            f"{model.path}: {model.unspecified}, so it does not say what its model computes beside the "
            f"recurrent layers{others}: {alone}, or give a file "
            f"{whole}, which specifies the whole model"
        )
    around = layers_around(model)
    if around and (own := without_rows(model, around)):
        raise LayoutError(f"{model.path}: it has {listed(own)}, which stepnet does not run; {alone}")
    if around:
        raise LayoutError(f"{model.path}: not only recurrent layers: it has {listed(around)}; {alone}")


def without_rows(model: FileContents, around: Sequence[str]) -> list[str]:
    """Returns the layers among `around` that stepnet cannot run (`Format.unsupported`)."""
    return kind(Path(model.path)).unsupported(Path(model.path), around)


def layers_around(model: FileContents) -> list[str]:
    """Returns the names of the layers of a file that are not recurrent, except layers that return their input
    unchanged, such as Dropout. model: the contents of the file.
    """
    return [name for name in model.layers if name not in model.neutral]


def check_alone(model: FileContents, modules: Sequence[Module]) -> None:
    """Raises `LayoutError` if the file uses its recurrent layers in a way that a plain stack of them does not
    have, such as several inputs. model: the contents of the file. modules: the recurrent layers of the file.
    """
    if facts := beyond_a_stack(model, modules):
        raise LayoutError(f"{'; '.join(facts)}: say {option('recurrent only')} for the layers without that")


def beyond_a_stack(model: FileContents, modules: Sequence[Module] | None = None) -> list[str]:
    """Lists how a file uses its recurrent layers in ways that a plain stack cannot.

    Examples are several inputs, other operations before the first layer, and states that are outputs.

    model: the contents of the file. modules: the recurrent layers of the file; None for all in its order.
    """
    modules = model.modules if modules is None else modules
    facts = [f"{bare(module.name)}: {fact}" for module in modules for fact in unexpressed(module)]
    first = modules[0] if modules else None
    if (
        first
        and first.follows
        and first.follows not in (*model.entrances, *(module.name for module in modules))
    ):
        facts.append(f"{bare(first.name)}: it takes what {first.follows} computes")
    if len(model.entrances) > 1:
        facts.append(f"the model has {len(model.entrances)} inputs ({listed(model.entrances)})")
    return facts


def unexpressed(module: Module) -> list[str]:
    """Lists the uses of a module (recurrent layers in a file) that plain layers do not express, as text.

    An example is that the file reads its outputs last step first.
    """
    facts = [*module.notes, *module.use, *([f"it {module.alone}"] if module.alone else [])]
    if module.flipped:
        facts.append("it returns its outputs last step first")
    if module.returned:
        facts.append("its final states are outputs of the model")
    return facts


def layer_of(modules: Sequence[Module]) -> Layer:
    """Makes the layers of a model from a file's recurrent modules, each of which feeds the next one. Raises
    `LayoutError` if it is unknown how two directions merge.
    """
    check_merges(modules)
    layers = [weights(module).layers() for module in modules]
    return layers[0] if len(layers) == 1 else Stack(layers)


# ---- the recurrent layers of any file ----------------------------------------------------------------------


def recurrent_layers(file: Path, choice: LayoutChoice) -> FileModel:
    """Reads the recurrent layers of a file, with the names of everything that is left out.

    choice: the user's choices of layouts (arrangements of weights), sizes and modules.
    """
    model = read(file, choice.layout, choice.layouts)
    selected = choice.checked_modules(model)
    check_agrees(model, selected)
    if choice.module is None:
        check_sizes(model, choice.sizes)
    with named(str(file)):
        modules = stacked(selected, choice.stack)
        if choice.module is None:
            check_stack(modules, PLAIN, choice.stack)
        layer = layer_of(modules)
    account = Account.of(model, selected, None)
    notes = {module.name: tuple(lines) for module in modules if (lines := left_notes(module))}
    return FileModel(layer, (*account.layers, *account.left), notes, str(file))


def left_notes(module: Module) -> list[str]:
    """Lists, as notes for the user, how a file uses a module (recurrent layers) beyond what the layers that
    are read from it do; also NaN and infinity in its weights.
    """
    facts = [*module.notes, *module.use, *([f"it {module.alone}"] if module.alone else [])]
    facts += notes_on_infinities(module)
    if module.flipped:
        facts.append("its model takes its outputs last step first; here they are in the order of the steps")
    if module.last_only:
        facts.append("its model takes only its last output; here it has an output at every step")
    if module.returned:
        facts.append("its final states are outputs of the model, which are left out")
    return facts
