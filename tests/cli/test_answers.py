"""Every question that stepnet asks names the option that answers it: one that the command takes, and that
gets past the question.
"""

import inspect
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
import typer
from command_line import stepnet
from keras import layers
from safetensors.torch import save_file
from torch import nn
from zoo import rnn_of

import stepnet as sn
from stepnet import arrow
from stepnet.build import build
from stepnet.build import load as load_library
from stepnet.cli.commands import app
from stepnet.layout.files import LayoutChoice, formats, interchange
from stepnet.layout.options import OPTIONS
from stepnet.model.verdict import verify_models
from stepnet.onnx import save as save_onnx

SOURCE = Path(sn.__file__).parent
IN, H = 3, 4
OUT = "{folder}/out"


@dataclass(frozen=True)
class Asked:
    """A command that asks: the file that it is given, its arguments, the row of the option that answers, a
    part of the question, and the answer: "" where that is to leave the option away.
    """

    source: str
    command: str
    row: str
    says: str
    answer: str

    def __str__(self) -> str:
        return f"{self.row}: {self.source} {self.command.split()[0]} {self.says}"


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.GRU(IN, H), nn.GRU(H, H)


class Headed(nn.GRU):
    def __init__(self) -> None:
        super().__init__(IN, H)
        self.head = nn.Linear(H, 2)


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.ModuleDict({"rnn": nn.GRU(IN, H)}) for _ in range(2))


def state(module: nn.Module) -> Callable[[Path], None]:
    """A file of the state of a module of PyTorch."""
    return lambda path: torch.save(module.state_dict(), path)


def numbers(**arrays: Any) -> Callable[[Path], None]:
    """A file of NumPy's."""
    return lambda path: np.savez_compressed(path, **arrays)


def ones(dtype: torch.dtype, fill: float = 1.0) -> Callable[[Path], None]:
    """A GRU whose numbers are all the same."""
    whole = nn.LSTM(IN, H, dtype=dtype).state_dict()
    return lambda path: torch.save({name: torch.full_like(one, fill) for name, one in whole.items()}, path)


def copies(path: Path) -> None:
    """A model, and its average beside it, with names that differ in what wraps them."""
    own = nn.GRU(IN, H).state_dict()
    torch.save(
        {front: {f"rnn.{name}": one for name, one in own.items()} for front in ("model", "module")}, path
    )


def optimised(path: Path) -> None:
    """An optimiser's state that holds arrays with the names of a layer."""
    torch.save(
        {"optimizer": nn.LSTM(IN, H).state_dict(), "state_dict": {"head.weight": torch.ones(2, 3)}}, path
    )


def either_gru(path: Path) -> None:
    """Arrays that are called as those of more than one layout of GRUs are."""
    random = np.random.default_rng(0)
    kernels = {"kernel": random.normal(size=(IN, 3 * H)), "recurrent_kernel": random.normal(size=(H, 3 * H))}
    arrays: dict[str, Any] = {f"gru_cell/{name}": array.astype("f4") for name, array in kernels.items()}
    np.savez(path, **arrays)


def two_columns(path: Path) -> None:
    steps = np.zeros((2, 5, IN), "f4").tolist()
    parquet.write_table(pa.table({"a": steps, "b": steps}), path)


def library(path: Path) -> None:
    gru = rnn_of("gru", IN, H)
    built = build(gru, path.parent / "built", name="gru", inputs=IN, target="aarch64")
    path.write_bytes(built.shared.read_bytes())


def embedding(path: Path) -> None:
    """A GRU over words, and words for it."""
    gru = rnn_of("gru", IN, H)
    params = np.ones((7, IN), "float32")
    graph = sn.Graph(lambda words, table: gru(table[words])[0], params, inputs=sn.Spec((), "int64"))
    save_onnx(graph, path)
    parquet.write_table(pa.table({"words": [[1, 6], [2]]}), path.parent / "ids.parquet")


def repeated(path: Path) -> None:
    """A Keras model for four steps, one number of which may be their number."""
    parts = [layers.GRU(2), layers.RepeatVector(4), layers.GRU(2)]
    keras.Sequential([keras.Input((4, IN)), *parts]).save(path)


class Activated(nn.Module):
    """Two layers of one class, each of which may have another activation."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.RNN(IN, H, nonlinearity="relu"), nn.RNN(H, H)


TWO = Two()
FILES: dict[str, Callable[[Path], None]] = {
    "gru.pt": state(nn.GRU(IN, H)),
    "rnn.pt": state(nn.RNN(IN, H)),
    "lstm.pt": state(nn.LSTM(IN, 5)),  # its biases are no whole multiples of one power of two
    "two.pt": state(TWO),
    "activated.pt": state(Activated()),
    "two.safetensors": lambda path: save_file(TWO.state_dict(), path),
    "one.pt": state(TWO.one),
    "both.npz": numbers(
        **{
            f"{way}/{name}": np.ones(shape, "f4")
            for way in ("forward", "backward")
            for name, shape in (("kernel", (IN, H)), ("recurrent_kernel", (H, H)), ("bias", (H,)))
        }
    ),
    "headed.pt": state(Headed()),
    "copies.pt": copies,
    "optimised.pt": optimised,
    "tie.npz": either_gru,
    "vector.npz": numbers(weight_space=np.ones(63, "f4")),
    "wide.pt": ones(torch.bfloat16),
    "large.pt": ones(torch.float16, 40000.0),
    "zeros.npz": numbers(zeros=np.zeros(1 << 25, "f4")),
    "columns.parquet": two_columns,
    "libgru.so": library,
    "ids.onnx": embedding,
    "repeated.keras": repeated,
}
CONVERT = f"convert SOURCE -o {OUT}"
HEAD = "--drop head.weight --drop head.bias"
SIZES = "--size inputs=2 --size hidden=3"
KERAS = f"{CONVERT}.npz --to keras"
RUN = "run SOURCE --recurrent-only --input {folder}/x.parquet -o {folder}/y.parquet"
EXPLAIN, ITSELF = "explain SOURCE --recurrent-only", "verify SOURCE SOURCE"
COLUMNS, OVER = RUN.replace("x.parquet", "columns.parquet"), RUN.replace("y.parquet", "x_id.parquet")
WRONG = RUN.replace("x.parquet", "wrong.parquet")
JOINED = "run SOURCE --recurrent-only {folder}/joined.ipc -o {folder}/joined --format arrow"
WHOLE = "run SOURCE {folder}/x.parquet -o {folder}/whole.parquet"
FURTHER = "run SOURCE --recurrent-only {folder}/x_id.parquet {folder}/x_day.parquet -o {folder}/kept"
EACH = "--semantics one:activation=relu --semantics two:activation=tanh"
CLIPPED = "verify onnx.gru torch.gru --semantics reset=after --semantics clip=1"
ROW = "the file does not say that it takes them"
ASKED = (
    Asked("gru.pt", "explain SOURCE", "recurrent only", "weights and no architecture", "--recurrent-only"),
    # which layout
    Asked("optimised.pt", KERAS, "layout of", "was not looked for", "--from optimizer=torch.lstm"),
    Asked("headed.pt", KERAS, "layout", "which torch.gru does not have", HEAD),
    # which module
    Asked("copies.pt", f"{KERAS} --module rnn", "module", "may be any of", "--module model.rnn"),
    Asked("gru.pt", f"{EXPLAIN} --module other", "module", "the only one has no name", ""),
    Asked("two.pt", f"{EXPLAIN} --module other", "module", "no recurrent module is", "--module two"),
    Asked("two.pt", "verify SOURCE {folder}/one.pt", "module", "has 2 recurrent modules", "--module one"),
    Asked("two.pt", f"{CONVERT}.json --to cudnn.gru", "module", "holds one recurrent module", "--module one"),
    # sizes and functions
    *(
        Asked("vector.npz", f"{command} --from cudnn.gru", "sizes", "which fit several sizes", SIZES)
        for command in (
            f"{CONVERT}.pt --to torch",
            EXPLAIN,
            "verify SOURCE torch.gru",
            "show SOURCE --to torch.gru",
        )
    ),
    *(
        Asked("rnn.pt", command, "semantics", "do not determine candidate_act", "--semantics activation=relu")
        for command in (
            KERAS,
            EXPLAIN,
            RUN,
            ITSELF,
            "show SOURCE --to keras",
        )
    ),
    *(
        Asked("activated.pt", f"{command}", "semantics of", "do not determine candidate_act", EACH)
        for command in (KERAS, f"{EXPLAIN} --stack", f"{RUN} --stack", ITSELF)
    ),
    Asked(
        "activated.pt",
        f"{KERAS} --semantics three:activation=relu",
        "semantics of",
        "no recurrent module is called 'three'",
        EACH,
    ),
    Asked(
        "",
        "verify onnx.gru torch.gru --semantics reset=after --semantics clip=1",
        "semantics",
        "the source's clip is 1",
        "--semantics clip=0",
    ),
    # layers in a row
    Asked("two.pt", f"{CONVERT}.onnx --to onnx", "stack", ROW, "--stack"),
    Asked("two.pt", RUN, "stack", ROW, "--stack"),
    Asked("two.pt", EXPLAIN, "stack", ROW, "--stack"),
    Asked("two.pt", EXPLAIN, "module", ROW, "--module one"),
    Asked(
        "two.safetensors",
        f"{CONVERT}.onnx --to onnx --stack",
        "order",
        "does not keep the order",
        "--module one --module two",
    ),
    # what is left over
    *(
        Asked("headed.pt", command, "drop", "which torch.gru does not have", HEAD)
        for command in (KERAS, EXPLAIN, RUN, ITSELF)
    ),
    Asked("headed.pt", KERAS, "rest", "if they are not part", "--rest copy"),
    *(
        Asked(
            "headed.pt",
            f"{CONVERT}{to} --rest copy",
            "rest",
            "recurrent",
            f"--rest drop {HEAD}",
        )
        for to in (".onnx --to onnx", ".keras --to keras", ".json --to cudnn.gru")
    ),
    # numbers and files
    Asked("lstm.pt", f"{KERAS} --exact", "exact", "rounded once", ""),
    Asked("wide.pt", KERAS, "dtype", "these weights are bfloat16", "--dtype float32"),
    *(
        Asked("large.pt", command, "dtype", "would exceed the largest float16", "--dtype float32")
        for command in (KERAS, "show SOURCE --to keras", "verify SOURCE keras.lstm")
    ),
    Asked("gru.pt", "convert SOURCE --to torch -o {folder}/rnn.pt", "force", "there already", "--force"),
    Asked("gru.pt", "show SOURCE --html {folder}/rnn.pt", "force", "there already", "--force"),
    Asked(
        "gru.pt",
        OVER,
        "force",
        "there already",
        "--force",
    ),
    Asked(
        "gru.pt",
        COLUMNS,
        "column",
        "2 list columns",
        "--column b",
    ),
    Asked("gru.pt", RUN.replace("y.parquet", "begun"), "resume", "the folder is not empty", "--resume"),
    Asked("gru.pt", JOINED, "format", "`k` has several dictionaries", "--format parquet"),
    Asked("gru.pt", WRONG, "bad", "has 1 numbers", "--bad {folder}/bad.parquet"),
    Asked("gru.pt", FURTHER, "keep", "there is no column `day`", "--keep id"),
    Asked("ids.onnx", ITSELF, "inputs", "no range is known", "--inputs {folder}/ids.parquet"),
    Asked("repeated.keras", WHOLE, "steps", "for 4 steps, and the sequence has 5", "--steps any"),
    Asked("libgru.so", RUN.replace(" --recurrent-only", ""), "trust", "that you trust it", "--trust-library"),
    Asked("zeros.npz", "show SOURCE", "most", "it would fill more than", "--most 1000000000"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, write in FILES.items():
        if name != "zeros.npz":
            write(tmp_path / name)
    zeros = pa.array(np.zeros((2, 5, IN), "f4").tolist())
    parquet.write_table(pa.table({"x": zeros}), tmp_path / "x.parquet")
    parquet.write_table(pa.table({"x": [[[1.0] * IN], [[1.0]]]}), tmp_path / "wrong.parquet")
    parquet.write_table(pa.table({"x": zeros, "id": [1, 2]}), tmp_path / "x_id.parquet")
    parquet.write_table(pa.table({"x": zeros, "id": [1, 2], "day": [1, 2]}), tmp_path / "x_day.parquet")
    write_dictionaries(tmp_path / "joined.ipc", zeros)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / ".x.parquet.partial").touch()
    return tmp_path


def write_dictionaries(path: Path, rows: Any) -> None:
    """A stream with a column of two dictionaries, which together have more values than its indices."""
    parts = [
        pa.DictionaryArray.from_arrays(pa.array([0, 99], pa.int8()), pa.array(range(first, first + 100)))
        for first in (0, 100)
    ]
    batches = [pa.record_batch({"x": rows, "k": each}) for each in parts]
    with pa.ipc.new_stream(path, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)


def options_of(command: str) -> set[str]:
    """The options of a command, and of all commands."""
    group: Any = typer.main.get_command(app)
    return {name for one in (group, group.commands[command]) for part in one.params for name in part.opts}


@pytest.mark.long(every=9)
@pytest.mark.parametrize("one", ASKED, ids=str)
def test_the_option_that_a_question_names_answers_it(folder: Path, one: Asked):
    source = folder / one.source
    if one.source == "zeros.npz":
        FILES[one.source](source)
    words = [word.replace("SOURCE", str(source)).format(folder=folder) for word in one.command.split()]
    code, _, said = stepnet(*words)
    option = OPTIONS[one.row]
    assert code == (3 if one.row == "inputs" else 1)
    assert one.says in said
    assert option.name in said
    if one.answer:
        assert f"(Python: {option.argument.partition('=')[0]}=" in said
    assert option.name in options_of(words[0])
    answer = one.answer.format(folder=folder).split()
    if one.row in ("module", "rest", "semantics of") and answer and answer[0] in words:
        at = words.index(answer[0])
        del words[at : at + 2]
    if not answer:
        at = words.index(option.name)
        del words[at : at + 2]
    code, _, after = stepnet(*answer, *words) if one.row == "most" else stepnet(*words, *answer)
    assert one.says not in after
    assert code == 0 or one.row == "most", after


def test_every_option_that_a_question_names_has_a_case():
    assert {one.row for one in ASKED} == OPTIONS.keys()


@pytest.mark.parametrize("row", OPTIONS)
def test_the_argument_that_a_question_names_is_one(row: str):
    takes = (
        *(sn.convert, interchange.convert_file, LayoutChoice, formats.read, arrow.run),
        *(load_library, verify_models, sn.load),
    )
    name = OPTIONS[row].argument.partition("=")[0]
    assert any(name in inspect.signature(one).parameters for one in takes)


def test_no_message_spells_an_option_itself():
    for path in (SOURCE / "layout").rglob("*.py"):
        text = re.sub(r'""".*?"""', "", path.read_text("utf-8"), flags=re.DOTALL)
        spelled = [
            line for line in text.splitlines() if re.search(r"""["' (]--[a-z]""", line.partition("#")[0])
        ]
        assert not spelled or path.name in ("options.py", "chainer.py"), (path, spelled)
