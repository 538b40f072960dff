"""RNNoise's network as a step, beside RNNoise's own code in C: instructions of a frame, and the outputs.

    git clone --branch v0.1.1 https://github.com/xiph/rnnoise build/rnnoise
    python -m bench.devices rnnoise --source build/rnnoise

The network is that of J.-M. Valin, "A hybrid DSP/deep learning approach to real-time full-band speech
enhancement", MMSP 2018, with the weights in `src/rnn_data.c`: int8, where 256 means 1. The library hears a
made sound and gives the features of its frames. Both networks then run on these, compiled with the same
options. Counts are of the network alone: `compute_rnn`, and `net_step`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import run
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

import stepnet as sn
from bench.devices.counting import CORES, counted, linked
from bench.devices.counting import missing as missing_for_boards
from bench.devices.native_counts import executed
from stepnet.build import DeviceBuild, build
from stepnet.errors import InputError

Array = np.ndarray
HERE = Path(__file__).parent
INPUTS, GAINS, RATE, SCALE = 42, 22, 48000, 256
MEMORY = {"vad": 24, "noise": 48, "denoise": 96}
SHAPES = {
    "input_dense": (INPUTS, 24),
    "vad_gru": (24, 72),
    "noise_gru": (24 + 24 + INPUTS, 144),
    "denoise_gru": (24 + 48 + INPUTS, 288),
    "denoise_output": (96, GAINS),
    "vad_output": (24, 1),
}
"""The inputs and outputs of each layer, where gates are outputs."""
KINDS: Mapping[str, tuple[str, str | None] | None] = {
    "float32": None,
    "int8 weights": ("int8", None),
    "int8 weights, int16 activations": ("int8", "int16"),
    "int8 weights, int8 activations": ("int8", "int8"),
}
"""The forms of the step-net: the dtypes of `sn.quantize`, or None for the model as it is."""
NATIVE = "-O2;-O3;-O2 -march=x86-64-v3;-O3 -march=x86-64-v3"
BOARD = "-O2", "-O3"
"""The options of the compiler for this machine, and for boards."""
STANDARD = "-std=c99", "-D_DEFAULT_SOURCE", "-w"


# ---- the network


def dense(x: Any, p: Mapping[str, Any], name: str) -> Any:
    """Computes the sums of a layer."""
    return x @ p[f"{name}_weights"] + p[f"{name}_bias"]


def gru(x: Any, h: Any, p: Mapping[str, Any], name: str) -> Any:
    """Computes a GRU that resets before the product, with a rectifier for the candidate. Gates: z, r, h."""
    weights, own, bias = (p[f"{name}_gru_{part}"] for part in ("weights", "recurrent_weights", "bias"))
    size = h.shape[-1]
    gates = sn.sigmoid(x @ weights[:, : 2 * size] + h @ own[:, : 2 * size] + bias[: 2 * size])
    kept, reset = gates[..., :size], gates[..., size:]
    sums = x @ weights[:, 2 * size :] + (reset * h) @ own[:, 2 * size :] + bias[2 * size :]
    return kept * h + (1 - kept) * np.maximum(sums, 0)


def network(x: Any, memory: Mapping[str, Any], p: Mapping[str, Any]) -> tuple[Any, Any]:
    """Computes one frame: gains [rows, 22] and the probability of voice [rows, 1], and the memories."""
    first = np.tanh(dense(x, p, "input_dense"))
    vad = gru(first, memory["vad"], p, "vad")
    noise = gru(np.concatenate([first, vad, x], -1), memory["noise"], p, "noise")
    denoise = gru(np.concatenate([vad, noise, x], -1), memory["denoise"], p, "denoise")
    outputs = sn.sigmoid(dense(denoise, p, "denoise_output")), sn.sigmoid(dense(vad, p, "vad_output"))
    return outputs, {"vad": vad, "noise": noise, "denoise": denoise}


def weights_in(text: str) -> dict[str, Array]:
    """Returns the parameters in the text of `rnn_data.c`, by the names there.

    Raises `InputError` if one is missing or has another size.
    """
    found = dict[str, Array]()
    for name, body in re.findall(r"rnn_weight (\w+)\[\d+\] = \{([^}]*)\}", text):
        found[name] = np.array(re.findall(r"-?\d+", body), np.float32) / np.float32(SCALE)
    params = dict[str, Array]()
    for layer, (inputs, outputs) in SHAPES.items():
        shapes = {"weights": (inputs, outputs), "bias": (outputs,)}
        if layer.endswith("gru"):
            shapes["recurrent_weights"] = (outputs // 3, outputs)
        for part, shape in shapes.items():
            name = f"{layer}_{part}"
            if name not in found or found[name].size != np.prod(shape):
                size = found[name].size if name in found else "none"
                raise InputError(
                    f"rnn_data.c has {size} for {name}, and {np.prod(shape)} numbers are expected: "
                    "the network is that of RNNoise 0.1.1"
                )
            params[name] = found[name].reshape(shape)
    return params


def step_net(params: Mapping[str, Array]) -> sn.RNN:
    """Returns the network with parameters."""
    return sn.RNN(network, dict(params), memory=MEMORY)


# ---- RNNoise's code


@dataclass(frozen=True)
class Heard:
    """The frames of a sound in RNNoise's library: features [frames, 42], and outputs [frames, 23]."""

    features: Array
    outputs: Array


def sound(seconds: float, seed: int) -> Array:
    """Makes vowels of a voice with pauses, in noise: samples of 48 kHz, as 16-bit numbers in float32."""
    random, count = np.random.default_rng(seed), int(seconds * RATE)
    time = np.arange(count) / RATE
    phase = np.cumsum(110 + 60 * random.uniform() + 30 * np.sin(4 * time)) / RATE
    formant = 8 + 5 * np.sin(7 * time + seed)
    voice = sum(np.sin(2 * np.pi * k * phase) / (1 + np.abs(k - formant)) for k in range(1, 25))
    speaks = np.repeat(random.uniform(size=count // 9600 + 1) < 0.6, 9600)[:count]
    return (3000 * voice * speaks + 500 * random.normal(size=count)).astype("<f4")


def sources_in(source: Path) -> list[Path]:
    """Returns the C files of RNNoise in a folder; raises `InputError` if it is not there."""
    needed = [source / "src" / "rnn_data.c", source / "src" / "rnn.c", source / "include" / "rnnoise.h"]
    if lacking := [str(path) for path in needed if not path.is_file()]:
        raise InputError(f"there is no {lacking[0]}: --source is a folder with RNNoise 0.1.1")
    return sorted((source / "src").glob("*.c"))


def compiled(program: Path, files: Sequence[Path], options: Sequence[str | Path]) -> Path:
    """Compiles C files for this machine; returns the program."""
    command = [str(each) for each in ("cc", *STANDARD, *options, *files, "-o", program, "-lm")]
    done = run(command, capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"cc failed: {done.stderr[-2000:]}")
    return program


def heard(source: Path, folder: Path, samples: Array) -> Heard:
    """Returns what RNNoise's library computes of a sound."""
    files = [HERE / "rnnoise_features.c", *sources_in(source)]
    options = ["-O2", "-Wl,--wrap=compute_rnn", f"-I{source / 'include'}", f"-I{source / 'src'}"]
    program = compiled(folder / "features", files, options)
    done = run([program], input=samples.tobytes(), capture_output=True, check=True)
    rows = np.frombuffer(done.stdout, "<f4").reshape(-1, INPUTS + GAINS + 1)
    return Heard(rows[:, :INPUTS], rows[:, INPUTS:])


# ---- both on frames


@dataclass(frozen=True)
class Code:
    """A network in C. files: its sources. options: those of the compiler. function: what runs a frame.
    dtypes: of inputs and outputs. inputs: the frames as it takes them. scales: of its gains, and of voice.
    constant_bytes: those of weights and tables.
    """

    name: str
    files: tuple[Path, ...]
    options: tuple[str, ...]
    function: str
    dtypes: tuple[str, str]
    inputs: Array
    scales: tuple[float, float]
    constant_bytes: int


def theirs(source: Path, frames: Array) -> Code:
    """Returns RNNoise's own network."""
    options = ("-DTHEIRS", f"-I{source / 'include'}", f"-I{source / 'src'}")
    files = (source / "src" / "rnn.c", source / "src" / "rnn_data.c")
    text = (source / "src" / "tansig_table.h").read_text()
    table = 4 * len(re.findall(r"\d\.\d+f", text))
    count = sum(value.size for value in weights_in(files[1].read_text()).values())
    name = "RNNoise's code: int8 weights"
    return Code(name, files, options, "compute_rnn", ("float", "float"), frames, (1.0, 1.0), count + table)


def ours(rnn: sn.RNN, kind: str, folder: Path, samples: Array, frames: Array) -> Code:
    """Builds the step-net in a form. samples: the features that scales are taken from."""
    folder = folder / kind.replace(" ", "_").replace(",", "")
    dtypes = KINDS[kind]
    model = rnn
    if dtypes is not None:
        model = sn.quantize(rnn, [samples[None]], dtypes[0], activations=dtypes[1])
    made = build(model, folder, name="net", target="c", inputs=INPUTS)
    assert isinstance(made, DeviceBuild)
    (x,), ends = made.program.of("input"), made.program.of("output")
    c_types = {"float32": "float", "int8": "int8_t", "int16": "int16_t"}
    inputs = frames
    if x.scale is not None:
        most = np.iinfo(x.dtype).max
        inputs = np.clip(np.rint(frames / x.scale), -most, most).astype(x.dtype)
    scales = tuple(1.0 if each.scale is None else each.scale for each in ends)
    return Code(
        f"step-net: {kind}",
        (folder / "net.c",),
        (f"-I{folder}",),
        "net_step",
        (c_types[x.dtype], c_types[ends[0].dtype]),
        inputs,
        (scales[0], scales[1]),
        made.sizes.constant_bytes,
    )


def frames_header(code: Code, count: int) -> str:
    """Returns the text of frames.h: the first frames as a table."""
    rows = [", ".join(str(value.item()) for value in row) for row in code.inputs[:count]]
    types = (
        ""
        if "-DTHEIRS" in code.options
        else f"typedef {code.dtypes[0]} input;\ntypedef {code.dtypes[1]} output;\n"
    )
    table = ",\n".join(f"{{{row}}}" for row in rows)
    return f"{types}#define COUNT {count}U\nstatic const input frames[{count}][{INPUTS}] = {{\n{table}\n}};\n"


def outputs_of(code: Code, folder: Path, count: int) -> Array:
    """Returns the outputs [frames, 23] that the code gives for the first frames."""
    (folder / "frames.h").write_text(frames_header(code, count))
    files = [HERE / "rnnoise_frames.c", *code.files]
    program = compiled(folder / "outputs", files, ["-O2", "-DWRITTEN", f"-I{folder}", *code.options])
    done = run([program], capture_output=True, check=True)
    dtype = {"float": "<f4", "int16_t": "<i2", "int8_t": "i1"}[code.dtypes[1]]
    rows = np.frombuffer(done.stdout, dtype).reshape(count, GAINS + 1)
    return (rows * np.repeat(code.scales, (GAINS, 1))).astype(np.float32)


def native(code: Code, folder: Path, flags: Sequence[str], count: int) -> float:
    """Returns the instructions of a frame on this machine."""
    (folder / "frames.h").write_text(frames_header(code, count))
    files = [HERE / "rnnoise_frames.c", *code.files]
    program = compiled(folder / "native", files, [*flags, f"-I{folder}", *code.options])
    return executed(program, code.function) / count


def on_board(code: Code, folder: Path, core: str, flags: Sequence[str], count: int) -> float:
    """Returns the instructions of a frame on a Cortex-M: those that more frames take more."""
    totals = list[int]()
    for frames in (count // 2, count):
        (folder / "frames.h").write_text(frames_header(code, frames))
        files = [HERE / "rnnoise_frames.c", *code.files]
        options = [*STANDARD, *flags, f"-I{folder}", *code.options]
        program = linked(folder, "board", CORES[core], files, options)
        totals.append(counted(program, CORES[core]).instructions)
    return (totals[1] - totals[0]) / (count - count // 2)


def row(name: str, values: Sequence[str]) -> str:
    """Returns a line of a table of Markdown."""
    return f"| {' | '.join((name, *values))} |"


def command(
    source: Annotated[Path, typer.Option(help="The folder of RNNoise 0.1.1.")],
    frames: Annotated[int, typer.Option(min=4, help="Frames to count.")] = 100,
    cores: Annotated[str, typer.Option(help=f"Of {', '.join(CORES)}, by commas.")] = "cortex-m4f",
    flags: Annotated[str, typer.Option(help="Of the compiler on this machine, by semicolons.")] = NATIVE,
    kinds: Annotated[str, typer.Option(help="Forms of the step-net, by semicolons.")] = ";".join(KINDS),
) -> None:
    """Print the instructions of a frame of both networks, and how far their outputs are apart."""
    boards = [] if missing_for_boards() else [core for core in cores.split(",") if core]
    rnn = step_net(weights_in((sources_in(source)[0].parent / "rnn_data.c").read_text()))
    with TemporaryDirectory() as text:
        folder = Path(text)
        samples, known = (heard(source, folder, sound(max(4.0, frames / 90), seed)) for seed in (1, 2))
        codes = [theirs(source, known.features)]
        codes += [ours(rnn, kind, folder, samples.features, known.features) for kind in kinds.split(";")]
        places = [(core, each) for core in boards for each in BOARD]
        columns = [*flags.split(";"), *(f"{core} {each}" for core, each in places)]
        typer.echo(row("network", [*columns, "constants, bytes", "away: most", "root mean square"]))
        typer.echo(row("---", ["---:"] * (len(columns) + 3)))
        for code in codes:
            counts = [native(code, folder, each.split(), frames) for each in flags.split(";")]
            counts += [on_board(code, folder, core, [each], min(frames, 20)) for core, each in places]
            away = outputs_of(code, folder, frames) - known.outputs[:frames]
            errors = [f"{np.abs(away).max():.2g}", f"{np.sqrt(np.mean(away**2)):.2g}"]
            typer.echo(
                row(code.name, [*(f"{count:,.0f}" for count in counts), f"{code.constant_bytes:,}", *errors])
            )
