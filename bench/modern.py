"""Times modern cells beside the functions of transformers and flash-linear-attention on the CPU.

    python -m bench.modern             a table
    python -m bench.modern kda mamba   rows whose names begin so
    python -m bench.modern --json

One sequence unless a row says more, from a memory that is not zero if the peer takes one. A peer's outputs
are compared with ours first. All alternate in one process, with the same number of threads; times are
medians, a ratio is the median of each round's, and the last column is the ratio to the fastest peer.

share   of the multiply-adds that the processor does at most (bench/runtimes/machine.py): what a cell does at
least for each number of its matrix, where an exp counts as EXP multiply-adds
"""

import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

import stepnet as sn
from bench.runtimes.machine import multiply_adds
from stepnet.cells import FORMS
from stepnet.cells.forms import axes_of
from stepnet.compiler.net.tolerance import tolerance

Array = np.ndarray
ROOT = Path(__file__).resolve().parents[1]
Tensors = dict[str, Any]
EXP = 12
WARM = 0.35
"""Seconds of each turn that do not count: the threads of the one before still spin."""
LOGARITHMS, SHARES, UNITS = ("g", "w"), ("beta", "dt"), ("q", "k", "a", "b", "r")


@dataclass(frozen=True)
class Case:
    """A cell, the sizes of its axes, and its peers by name. work: multiply-adds for each number of its memory
    in a step; 0 if that is no matrix.
    """

    cell: str
    steps: int
    sizes: Mapping[str, int]
    peers: tuple[str, ...]
    work: int = 0
    rows: int = 1

    @property
    def name(self) -> str:
        """The case as text, for the table."""
        size = " x ".join(f"{size}" for size in self.sizes.values())
        rows = f", {self.rows} sequences" if self.rows > 1 else ""
        return f"{self.cell} {size}, {self.steps} step{'s' if self.steps > 1 else ''}{rows}"


def heads(size: int) -> dict[str, int]:
    """Returns the sizes of 8 heads with keys and values of `size`."""
    return {"heads": 8, "key": size, "value": size}


CHANNELS = {"channels": 512, "states": 16}
HEADS2 = {"heads": 8, "features": 64, "groups": 1, "states": 64}
DELTA = ("transformers, chunks", "transformers, steps")
CASES = (
    Case("gated_delta_rule", 256, heads(64), DELTA, 4),
    Case("gated_delta_rule", 1024, heads(128), DELTA, 4),
    Case("gated_delta_rule", 1, heads(128), DELTA),
    Case("kda", 256, heads(64), ("transformers, chunks", "transformers, steps"), 4),
    Case("mamba", 256, CHANNELS, ("transformers", "torch.compile"), EXP + 4),
    Case("mamba", 256, CHANNELS, ("transformers", "torch.compile"), EXP + 4, rows=8),
    Case("mamba2", 256, HEADS2, ("transformers, chunks",), 3),
    Case("rwkv7", 256, heads(64), ("fla, chunks", "fla, steps"), 5),
    Case("mlstm", 256, heads(64), ("transformers, chunks", "transformers, steps"), 3),
    Case("rg_lru", 256, {"channels": 2560}, ("transformers",)),
)


# ---- the peers ---------------------------------------------------------------------------------------------


def modeling(family: str) -> Any:
    """Imports the module of a family of models in transformers."""
    return importlib.import_module(f"transformers.models.{family}.modeling_{family}")


def of_fla(path: str) -> Any:
    """Imports a file of flash-linear-attention without its package, which needs a GPU's compiler."""
    folder = next(ROOT.glob(".peers/fla/lib/python3*/site-packages"), None)
    if folder is None or not (folder / "fla").is_dir():
        raise ImportError("flash-linear-attention is missing")
    sys.path.append(str(folder))  # after all others: only einops is imported from it
    spec: Any = importlib.util.spec_from_file_location("plain", folder / "fla" / "ops" / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unscaled(q: Any) -> Any:
    """Multiplies a query by the root of its size, for a function that divides it by that."""
    return q * q.shape[-1] ** 0.5


def first(tensors: Tensors) -> Tensors:
    """Converts tensors [rows, steps, heads, ...] to [rows, heads, steps, ...]."""
    return {name: tensor.transpose(1, 2).contiguous() for name, tensor in tensors.items()}


def delta(function: Any) -> Any:
    """Wraps a gated delta rule of transformers as a peer: a function that returns the call to time."""

    def made(x: Tensors, memory: Any, params: Tensors) -> Any:
        """Returns the call of the delta rule on these inputs and memory, to be timed."""
        inputs = unscaled(x["q"]), x["k"], x["v"], x["g"], x["beta"]
        return lambda: function(*inputs, initial_state=memory, output_final_state=True)[0]

    return made


def mamba(x: Tensors, memory: Any, params: Tensors) -> Any:
    """Returns the call of transformers' selective scan for these inputs and parameters."""
    turned = {name: tensor.transpose(1, 2).contiguous() for name, tensor in x.items()}
    run = modeling("mamba").mamba_selective_scan
    args = turned["x"], turned["dt"], params["A"], turned["B"], turned["C"], params["D"]
    return lambda: run(*args).transpose(1, 2)


def mamba_compiled(x: Tensors, memory: Any, params: Tensors) -> Any:
    """Returns a loop over Mamba's step, compiled by torch.compile."""

    def step(h: Any, u: Any, dt: Any, B: Any, C: Any) -> Any:
        """Computes the equations of one step of Mamba: the next h, and the output."""
        h = torch.exp(dt[..., None] * params["A"]) * h + (dt * u)[..., None] * B[:, None]
        return h, (h * C[:, None]).sum(-1) + params["D"] * u

    compiled = torch.compile(step)

    def run() -> Any:
        """Runs all steps by the compiled step, to be timed; returns the outputs."""
        h, outputs = memory, list[Any]()
        for now in range(x["x"].shape[1]):
            h, y = compiled(h, *(x[name][:, now] for name in ("x", "dt", "B", "C")))
            outputs.append(y)
        return torch.stack(outputs, 1)

    return run


def mamba2(x: Tensors, memory: Any, params: Tensors) -> Any:
    """Returns the call of transformers' chunked scan of Mamba 2."""
    run, args = modeling("mamba2").mamba2_chunk_scan, (x["x"], x["dt"], params["A"], x["B"], x["C"])
    return lambda: run(*args, chunk_size=64, D=params["D"], initial_states=memory)


def rwkv7(name: str) -> Any:
    """Wraps a function of flash-linear-attention for RWKV 7 as a peer: it returns the call to time."""

    def made(x: Tensors, memory: Any, params: Tensors) -> Any:
        """Returns the call of the function on these inputs and memory, to be timed."""
        run, turned = getattr(of_fla("generalized_delta_rule/dplr/naive.py"), name), first(x)
        args = [turned[letter] for letter in "rkvabw"]
        return lambda: run(unscaled(args[0]), *args[1:], memory)[0].transpose(1, 2)

    return made


def mlstm(name: str) -> Any:
    """Wraps a function of transformers' xLSTM as a peer: it returns the call to time."""

    def made(x: Tensors, memory: Any, params: Tensors) -> Any:
        """Returns the call of the function on these inputs and memory, to be timed."""
        run, turned = getattr(modeling("xlstm"), name), first(x)
        states = memory["C"], memory["n"], memory["m"][..., None]
        args = unscaled(turned["q"]), turned["k"], turned["v"], turned["i"], turned["f"]
        return lambda: run(*args, *states, eps=0.0).transpose(1, 2)

    return made


def rg_lru(x: Tensors, memory: Any, params: Tensors) -> Any:
    """Returns a call that computes gates as transformers' RG-LRU layer does, and runs its loop."""
    scan = modeling("recurrent_gemma").RecurrentGemmaRglru._rnn_scan
    softplus, reset = torch.nn.functional.softplus, torch.zeros(*x["x"].shape[:2], 1, dtype=torch.bool)

    def run() -> Any:
        """Computes the gates and runs transformers' loop, to be timed; returns the outputs."""
        log = -8 * torch.sigmoid(x["r"]) * softplus(params["lambda"])
        u = x["x"] * torch.sigmoid(x["i"]) * torch.sqrt(1 - torch.exp(2 * log))
        return scan(None, u, torch.exp(log), reset, memory)[0]

    return run


def of_delta(family: str, function: str) -> Any:
    """Wraps a gated delta rule of a family of models in transformers, imported when it is used."""
    return lambda *args: delta(getattr(modeling(family), function))(*args)


PEERS: dict[tuple[str, str], Any] = {
    ("gated_delta_rule", DELTA[0]): of_delta("qwen3_next", "torch_chunk_gated_delta_rule"),
    ("gated_delta_rule", DELTA[1]): of_delta("qwen3_next", "torch_recurrent_gated_delta_rule"),
    ("kda", DELTA[0]): of_delta("kimi_linear", "chunk_kimi_delta_attention"),
    ("kda", DELTA[1]): of_delta("kimi_linear", "recurrent_kimi_delta_attention"),
    ("mamba", "transformers"): mamba,
    ("mamba", "torch.compile"): mamba_compiled,
    ("mamba2", "transformers, chunks"): mamba2,
    ("rwkv7", "fla, chunks"): rwkv7("dplr_chunkwise"),
    ("rwkv7", "fla, steps"): rwkv7("dplr_recurrence"),
    ("mlstm", "transformers, chunks"): mlstm("mlstm_chunkwise_native_autograd"),
    ("mlstm", "transformers, steps"): mlstm("mlstm_recurrent_sequence_native"),
    ("rg_lru", "transformers"): rg_lru,
}
"""By cell and name: a function of inputs, memory and parameters as tensors that returns the call to time."""
FROM_ZEROS = ("mamba", "rg_lru")
"""Cells of which a peer begins with zeros."""


# ---- what is run -------------------------------------------------------------------------------------------


def arrays_of(case: Case) -> tuple[dict[str, Array], Any, dict[str, Array]]:
    """Returns random inputs, memory and parameters of a case, in the range that models have them in."""
    random, form = np.random.default_rng(0), FORMS[case.cell]
    letters = {"c": "channels", "n": "states", "g": "groups", "p": "features", "h": "heads"}
    letters |= {"k": "key", "v": "value"}

    def array(name: str, axes: str, front: tuple[int, ...] = ()) -> Array:
        """Returns a random array with axes by letter, in `name`'s usual range; front: lengths before them."""
        shape = *front, *(case.sizes[letters[letter]] for letter in axes)
        values = random.standard_normal(shape).astype("float32")
        if name in LOGARITHMS or name == "A":
            return -np.abs(values) / 4
        if name in SHARES:
            return 1 / (1 + np.exp(-values))
        unit = name in UNITS and axes == "hk"
        return values / np.sqrt((values * values).sum(-1, keepdims=True)) if unit else values

    x = {name: array(name, axes, (case.rows, case.steps)) for name, axes in axes_of(form.inputs).items()}
    params = {
        name.removesuffix("?"): array(name.removesuffix("?"), axes)
        for name, axes in axes_of(form.parameters).items()
    }
    scale = 0 if case.cell in FROM_ZEROS else 1
    parts = {name: scale * array("", axes, (case.rows,)) for name, axes in axes_of(form.memory).items()}
    if case.cell == "rwkv7":
        x["a"], x["b"] = -x["k"], x["k"] * 0.5  # a removal key and its rate, which keep the memory bounded
    return x, parts.get("", parts), params


def by_part(memory: Any) -> dict[str, Any]:
    """Returns the parts of a memory by name; a memory that is a single array is the part ""."""
    return memory if isinstance(memory, dict) else {"": memory}


def ours(case: Case, x: dict[str, Array], memory: Any, params: dict[str, Array]) -> Callable[[], Array]:
    """Returns a function that runs a case by stepnet: a step of a stream if there is a single one."""
    parts = {name: array.shape[1:] for name, array in by_part(memory).items()}
    rnn = sn.RNN(getattr(sn.cells, case.cell), params or None, memory=parts.get("", parts))
    if case.steps > 1:
        return lambda: rnn(x, initial=memory)[0]
    stream, now = rnn.stream(rows=case.rows), {name: array[:, 0] for name, array in x.items()}
    return lambda: stream.step(now)[:, None]


def ways(case: Case) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Returns functions that run a case, by name, stepnet's first, and the reasons why peers are missing;
    raises `AssertionError` if a peer computes something else.
    """
    x, memory, params = arrays_of(case)
    if case.steps == 1:
        memory = memory * 0  # a stream starts from zeros
    run = ours(case, x, memory, params)
    right, runs, missing = run(), {"stepnet": run}, dict[str, str]()
    inputs, parts, parameters = (
        {name: torch.from_numpy(array) for name, array in each.items()}
        for each in (x, by_part(memory), params)
    )
    width = max(case.sizes.values())
    for name in case.peers:
        try:
            theirs = PEERS[case.cell, name](inputs, parts.get("", parts), parameters)
        except ImportError as error:
            missing[name] = str(error)
            continue
        with torch.inference_mode():
            given = theirs().numpy()
        away = float((np.abs(given - right) / np.maximum(1, np.abs(right))).max())
        most = 2 * tolerance("float32", case.steps, width)
        assert away <= most, f"{case.name}: {name} is {away:.1e} away, where {most:.1e} is rounding"
        runs[name] = theirs
    return runs, missing


@dataclass(frozen=True)
class Times:
    """The result for a case: median seconds of every round by name, and reasons for missing peers.

    peak: the most floating operations a second that the processor reached.
    """

    case: Case
    seconds: dict[str, list[float]]
    missing: dict[str, str]
    peak: float

    def ratio(self, name: str) -> float:
        """Returns the median time of a peer over stepnet's."""
        pairs = zip(self.seconds["stepnet"], self.seconds[name], strict=True)
        return median(theirs / own for own, theirs in pairs)

    @property
    def best(self) -> float | None:
        """The ratio of the fastest peer; None without any."""
        return min((self.ratio(name) for name in self.seconds if name != "stepnet"), default=None)

    @property
    def share(self) -> float | None:
        """The share of the processor's most multiply-adds that the cell needs at least; None if unknown."""
        if not self.case.work:
            return None
        sizes = [size for name, size in self.case.sizes.items() if name != "groups"]
        numbers = self.case.rows * self.case.steps * prod(sizes)
        return 2 * self.case.work * numbers / self.peak / median(self.seconds["stepnet"])


def measured(case: Case, rounds: int, counted: int, warm: float = WARM) -> Times:
    """Times a case by stepnet and its peers in alternation; `counted` runs of each turn count."""
    (runs, missing), peak = ways(case), 0.0
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    with torch.inference_mode():
        for _ in range(rounds):
            for name, way in runs.items():
                until = time.perf_counter() + warm
                way()
                while time.perf_counter() < until:
                    way()
                seconds[name].append(median(timed(way) for _ in range(counted)))
            peak = max(peak, multiply_adds("float32", torch.get_num_threads())[0])
    return Times(case, seconds, missing, peak)


def timed(way: Callable[[], Any]) -> float:
    """Returns the seconds of one call."""
    begun = time.perf_counter()
    way()
    return time.perf_counter() - begun


# ---- what one sees -----------------------------------------------------------------------------------------


def table(times: list[Times], threads: int) -> Table:
    """Returns the table of all results, with a row for each case."""
    shown = Table(title=f"Cells beside functions of other libraries, {threads} threads, milliseconds")
    shown.add_column("cell", no_wrap=True)
    for name in ("stepnet", "share", "peers", "times"):
        shown.add_column(name, justify="right")
    for each in times:
        peers = [
            f"{name} {median(taken) * 1e3:.3g} ({each.ratio(name):.1f})"
            for name, taken in each.seconds.items()
            if name != "stepnet"
        ]
        peers += [f"{name}: {why}" for name, why in each.missing.items()]
        share = "" if each.share is None else f"{each.share:.0%}"
        best = "" if each.best is None else f"{each.best:.1f}"
        own = f"{median(each.seconds['stepnet']) * 1e3:.3g}"
        shown.add_row(each.case.name, own, share, "\n".join(peers), best)
    return shown


def main(
    names: Annotated[list[str] | None, typer.Argument(help="How the names of rows begin; all.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 5,
    counted: Annotated[int, typer.Option(min=1, help="How many runs of a turn count.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="The number of threads.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Time modern cells beside functions of other libraries, and print a table or JSON."""
    chosen = [case for case in CASES if not names or case.name.startswith(tuple(names))]
    if not chosen:
        raise typer.BadParameter(f"no row begins with {names}: there are {[case.name for case in CASES]}")
    torch.set_num_threads(threads)
    sn.set_threads(threads)
    try:
        times = [measured(case, rounds, counted) for case in chosen]
    finally:
        sn.set_threads(None)
    if as_json:
        rows = [
            {
                "case": each.case.name,
                "seconds": each.seconds,
                "missing": each.missing,
                "share": each.share,
                "best": each.best,
            }
            for each in times
        ]
        typer.echo(json.dumps(rows, indent=1))
        return
    console = Console()
    (console if console.is_terminal else Console(width=120)).print(table(times, threads))


if __name__ == "__main__":
    typer.run(main)
