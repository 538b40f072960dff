"""`stepnet demo`: a speaker classifier trained in PyTorch, run over utterances of any length without padding.

It reads like a program of a user: load the weights and the data, run, compare. The model is in
`data/speaker_gru.safetensors`: an `nn.GRU(12, 64)`, and an `nn.Linear(64, 9)` on its last state.
"""

import inspect
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.resources import as_file, files
from importlib.util import find_spec
from typing import Any

import numpy as np
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

import stepnet as sn
from stepnet.compiler.targets.threads import threads
from stepnet.compiler.values.records import dataclass
from stepnet.errors import StepnetError
from stepnet.explain.bars import work_bar
from stepnet.layout import from_torch
from stepnet.layout.files.safetensors import read
from stepnet.ragged.arrow import pyarrow_module

Array = np.ndarray
Recurrence = Callable[..., tuple[Any, Any]]
DATA = files("stepnet.cli") / "data"
RACE_SECONDS = 3.0
WARM, COUNTED = 4, 6  # runs in a turn: those that do not count, and those that do
ROUNDS = (4, 200)  # the least and the most turns of each function
OURS = ("stepnet, from the file", "stepnet, ten lines")


def gru(x: Array, h: Array, weights: dict[str, Array]) -> tuple[Array, Array]:
    """Computes one step of PyTorch's GRU: (output, next memory). weights: by PyTorch's names."""
    inputs = x @ weights["weight_ih_l0"].T + weights["bias_ih_l0"]
    memory = h @ weights["weight_hh_l0"].T + weights["bias_hh_l0"]
    x_r, x_z, x_n = np.split(inputs, 3, axis=1)
    h_r, h_z, h_n = np.split(memory, 3, axis=1)
    r = sn.sigmoid(x_r + h_r)
    z = sn.sigmoid(x_z + h_z)
    n = np.tanh(x_n + r * h_n)
    h = (1 - z) * n + z * h
    return h, h


@dataclass(frozen=True)
class Speakers:
    """The data of the demo.

    weights: the model's arrays by name. utterances, speakers: the test set, and who speaks (1 to 9).
    recorded: PyTorch's outputs, by name.
    """

    weights: dict[str, Array]
    utterances: sn.Ragged
    speakers: Array
    recorded: dict[str, Array]

    @property
    def recurrent(self) -> dict[str, Array]:
        """The weights of the demo model's GRU, by their names in PyTorch's `nn.GRU`."""
        return {n.removeprefix("gru."): weight for n, weight in self.weights.items() if n.startswith("gru.")}

    def logits(self, last_states: Array) -> Array:
        """Applies the demo's linear layer to the GRU's last states: [utterances, 64] to [utterances, 9]."""
        return last_states @ self.weights["head.weight"].T + self.weights["head.bias"]


def load() -> Speakers:
    """Loads weights and test data of the demo; utterances stay in Arrow's memory, without copy or padding. In
    a zip file, the files are unpacked for this.

    Raises `StepnetError` where the data is not there: the wheel of the package leaves it out.
    """
    if not (DATA / "japanese_vowels.parquet").is_file():
        raise StepnetError(
            "the demo's recordings, 2.2 MB, are not part of the installed package: clone the repository, or "
            "unpack the source distribution, and run `make demo` there"
        )
    parquet = pyarrow_module("pyarrow.parquet", "Parquet files")
    names = "japanese_vowels.parquet", "speaker_gru.safetensors", "speaker_gru_outputs.safetensors"
    with ExitStack() as held:
        vowels, weights, outputs = (held.enter_context(as_file(DATA / name)) for name in names)
        table = parquet.read_table(vowels, filters=[("split", "==", "test")])
        return Speakers(
            read(weights),
            sn.Ragged.from_arrow(table["frames"]),
            table["speaker"].to_numpy(),
            read(outputs),
        )


# ---- results ----------------------------------------------------------------------------------------------


def compile_seconds(layer: Recurrence, data: Speakers, engine: str) -> float:
    """Measures the seconds of a layer's first call by an engine: tracing, planning and compiling."""
    begun = time.perf_counter()
    layer(data.utterances[:1], engine=engine)
    return time.perf_counter() - begun


def judge(layer: Recurrence, data: Speakers, engine: str) -> dict[str, Any]:
    """Runs the demo's classifier on all test utterances, and compares it with the truth and with PyTorch.

    layer: the GRU, run by an engine. Returns the figures by name: counts, the accuracy, and the largest
    differences from PyTorch's outputs.
    """
    states, last_states = layer(data.utterances, engine=engine)
    logits = data.logits(last_states)
    guesses, recorded = logits.argmax(axis=1), data.recorded
    right = int((guesses + 1 == data.speakers).sum())
    return {
        "utterances": len(data.utterances),
        "right": right,
        "accuracy": right / len(data.utterances),
        "same_predictions": int((guesses == recorded["logits"].argmax(axis=1)).sum()),
        "states_difference": float(np.abs(states.values - recorded["states"]).max()),
        "logits_difference": float(np.abs(logits - recorded["logits"]).max()),
    }


# ---- speed ------------------------------------------------------------------------------------------------


def contenders(
    loaded: Recurrence, by_hand: Recurrence, data: Speakers, engine: str
) -> dict[str, Callable[[], Any]]:
    """Returns the functions to time, by name: stepnet's two, and PyTorch's if it is installed.

    Each computes the logits of all utterances of `data`. loaded: the GRU made from the file. by_hand: the GRU
    written as a step. engine: the engine that runs both.
    """
    ours = {
        OURS[0]: lambda: data.logits(loaded(data.utterances, engine=engine)[1]),
        OURS[1]: lambda: data.logits(by_hand(data.utterances, engine=engine)[1]),
    }
    return ours if find_spec("torch") is None else {**ours, **torch_contenders(data)}


def torch_contenders(data: Speakers) -> dict[str, Callable[[], Any]]:
    """Returns functions that run the demo's model (a GRU and a linear layer) in PyTorch, by the name of the
    way, on utterances already packed or padded.
    """
    with work_bar("importing torch"):
        torch: Any = import_module("torch")
    model = torch.nn.ModuleDict(
        {"gru": torch.nn.GRU(12, 64, batch_first=True), "head": torch.nn.Linear(64, 9)}
    )
    model.load_state_dict({name: torch.from_numpy(weight) for name, weight in data.weights.items()})
    packed = data.utterances.to_packed()
    padded, lengths = (torch.from_numpy(array) for array in data.utterances.to_padded())
    rows = torch.arange(len(lengths))

    @torch.inference_mode()
    def run_packed() -> Any:
        """Computes the logits from packed utterances, by the GRU's final memory."""
        return model["head"](model["gru"](packed)[1][0])

    @torch.inference_mode()
    def run_padded() -> Any:
        """Computes the logits from padded utterances, by each one's last output."""
        return model["head"](model["gru"](padded)[0][rows, lengths - 1])

    return {"torch, packed": run_packed, "torch, padded": run_padded}


def race(runners: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Times functions in turns of a few runs each, with equal numbers of threads, to compare them; returns
    the seconds of each run, by name. It ends after `RACE_SECONDS`, within the least and the most turns
    (`ROUNDS`).

    The first runs of each turn do not count: threads of the previous function (torch's, for a while) still
    occupy a processor then.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    spent = 0.0
    with same_threads(), work_bar("runs in turn", RACE_SECONDS) as advance:
        for done in range(ROUNDS[1]):
            if done >= ROUNDS[0] and spent > RACE_SECONDS:
                break
            begun = time.perf_counter()
            for name, runner in runners.items():
                turn = [time_run(runner) for _ in range(WARM + COUNTED)]
                seconds[name] += turn[WARM:]
            last = time.perf_counter() - begun
            spent += last
            advance(last)
    return seconds


def time_run(runner: Callable[[], Any]) -> float:
    """Measures the seconds that one call of a function takes."""
    start = time.perf_counter()
    runner()
    return time.perf_counter() - start


@contextmanager
def same_threads() -> Generator[None]:
    """Makes torch, if imported, use as many threads as stepnet inside a `with`, to compare speeds."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(threads())
    try:
        yield
    finally:
        torch.set_num_threads(before)


def speeds(seconds: dict[str, list[float]], utterances: int) -> dict[str, dict[str, float]]:
    """Computes speeds from measured times: by name, utterances per second, and median and quartiles in
    milliseconds.

    seconds: the seconds of each run, by name. utterances: the number in one run.
    """
    medians: dict[str, dict[str, float]] = {}
    for name, runs in seconds.items():
        low, median, high = np.percentile(runs, [25, 50, 75])
        medians[name] = {
            "utterances_per_second": utterances / median,
            "milliseconds": median * 1e3,
            "milliseconds_quartile_1": low * 1e3,
            "milliseconds_quartile_3": high * 1e3,
        }
    return medians


# ---- output -----------------------------------------------------------------------------------------------


def demonstrate(engine: str = "auto", quiet: bool = False) -> dict[str, Any]:
    """Runs the demo: loads the data, runs the model by stepnet and by PyTorch, and compares results and
    times. Returns all figures by name for --json, and prints them unless `quiet`.
    """
    console = Console(highlight=False, quiet=quiet)
    data = load()
    lengths = data.utterances.lengths
    console.rule("[bold]Who is speaking?[/] A GRU trained in PyTorch, run by stepnet")
    show(
        console,
        "data",
        f"{len(lengths)} utterances of {lengths.min()} to {lengths.max()} frames, never padded",
    )

    loaded = from_torch(data.weights, prefix="gru")
    seconds = compile_seconds(loaded, data, engine)
    show(console, "compiled", f"in {seconds:.2f} s, from the weights in speaker_gru.safetensors")
    from_file = judge(loaded, data, engine)
    show_judgement(console, from_file)

    console.rule("The same by hand: a step in ten lines of equations")
    console.print(Syntax(inspect.getsource(gru), "python", theme="ansi_dark", background_color="default"))
    by_hand = sn.RNN(gru, data.recurrent, memory=64)
    from_equations = judge(by_hand, data, engine)
    show_judgement(console, from_equations)

    console.rule(f"All {len(lengths)} utterances at a time, {threads()} threads")
    medians = speeds(race(contenders(loaded, by_hand, data, engine)), len(lengths))
    show_speeds(console, medians)
    return {
        "utterances": len(lengths),
        "frames": data.utterances.total,
        "compile_seconds": seconds,
        "from_file": from_file,
        "from_equations": from_equations,
        "threads": threads(),
        "speeds": medians,
    }


def show(console: Console, name: str, text: str) -> None:
    """Prints a line of the demo with a bold name in front."""
    console.print(f"[bold]{name:<10}[/] {text}")


def show_judgement(console: Console, judgement: dict[str, Any]) -> None:
    """Prints the accuracy of the classifier, and its agreement with PyTorch. judgement: from `judge`."""
    count = judgement["utterances"]
    show(
        console,
        "accuracy",
        f"{judgement['right']} of {count} speakers told right ({judgement['accuracy']:.2%})",
    )
    states, logits = judgement["states_difference"], judgement["logits_difference"]
    show(console, "agreement", f"states within {states:.1e} and logits within {logits:.1e} of PyTorch's,")
    show(console, "", f"{judgement['same_predictions']} of {count} predictions the same")


def show_speeds(console: Console, medians: dict[str, dict[str, float]]) -> None:
    """Prints a table of utterances per second, and a comparison with PyTorch. medians: from `speeds`."""
    table = Table("", "utterances/s", "milliseconds", "quartiles", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, speed in medians.items():
        quartiles = f"{speed['milliseconds_quartile_1']:.2f} to {speed['milliseconds_quartile_3']:.2f}"
        rate = f"{speed['utterances_per_second']:,.0f}"
        table.add_row(name, rate, f"{speed['milliseconds']:.2f}", quartiles)
    console.print(table)
    peers = [speed["utterances_per_second"] for name, speed in medians.items() if name not in OURS]
    if peers:
        ratio = medians[OURS[0]]["utterances_per_second"] / max(peers)
        console.print(
            f"stepnet does {ratio:.1f} times as many as the better of torch's two, which find their"
        )
        console.print("utterances packed or padded already. Medians of runs in turn.")
    else:
        console.print("torch is not installed, so its own runs are not beside these: pip install torch")
