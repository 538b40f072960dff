"""Every saved file in every kind of file: converted, and judged by who runs the new one.

specimen --convert_file--> written file --judge--> outputs, next to those of who saved the specimen
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tolerance import distance

from stepnet.cli.options import choice
from stepnet.compiler.net.tolerance import tolerance
from stepnet.errors import StepnetError
from stepnet.layout import record
from stepnet.layout.files import LayoutChoice, Module, convert_file, read, weights
from stepnet.layout.files.formats import Format, by_ending
from stepnet.layout.files.interchange import Written, converted_module
from stepnet.layout.files.interchange import converted as as_layout
from stepnet.layout.files.stacks import stacked
from stepnet.layout.files.verified import read_back
from stepnet.layout.report import Report
from stepnet.model.compose import Layer
from tests.peers.corpus.judge import Job, Part, save
from tests.peers.corpus.specimens import INPUTS, STEPS, Specimen
from tests.peers.environments import HERE, python

ROW = "*"  # of a specimen: from the inputs of its first layer to the outputs of its last one


def in_a_process(command: list[str]) -> None:
    """Runs a command, which has to succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@dataclass(frozen=True)
class Judge:
    """Who runs written files: a framework by a script, in its environment, and what that is called with."""

    name: str
    script: str
    environment: str
    words: tuple[str, ...] = ()

    @property
    def python(self) -> Path:
        return python(self.environment)

    def outputs(
        self, jobs: list[Job], folder: Path, run: Callable[[list[str]], None]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """The outputs for jobs, by the place of the job and of the part; and the versions."""
        given, made = folder / "jobs.npz", folder / "outputs.npz"
        save(given, jobs)
        run([*map(str, (self.python, HERE / "corpus" / self.script, given, made)), *self.words])
        with np.load(made) as file:
            return {name: file[name] for name in file.files}, json.loads(str(file["versions"]))


TORCH = Judge("torch", "torch_judge.py", ".venv")
KERAS = Judge("keras", "keras_judge.py", ".venv")
KERAS_2 = Judge("tf_keras", "keras_judge.py", ".peers/tensorflow", ("tf_keras",))
ONNXRUNTIME = Judge("onnxruntime", "onnx_judge.py", ".venv")
TFLITE = Judge("tflite", "tflite_judge.py", ".peers/tensorflow")
JAX = Judge("jax", "jax_judge.py", ".peers/jax")
PADDLE = Judge("paddlepaddle", "paddle_judge.py", ".peers/paddle")
OPERATORS = ("paddle.fusion_gru",)


@dataclass(frozen=True)
class Target:
    """A target of conversions: a layout, by the cell where it is another for each, and a kind of file.

    judges: who is asked about it, each of whom has to give the right outputs.
    """

    layout: str
    ending: str
    judges: tuple[Judge, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.layout.replace('.{cell}', '')} {self.ending}"


TARGETS = (
    Target("torch", ".pt", (TORCH,)),
    Target("torch", ".safetensors", (TORCH,)),
    Target("torch.{cell}_cell", ".pth", (TORCH,)),
    Target("keras", ".keras", (KERAS,)),
    Target("keras", ".weights.h5", (KERAS,)),
    Target("keras2", ".h5", (KERAS_2, KERAS)),
    Target("onnx", ".onnx", (ONNXRUNTIME,)),
    Target("tflite", ".tflite", (TFLITE,)),
    Target("paddle", ".pdparams", (PADDLE,)),
    Target("flax", ".msgpack", (JAX,)),
    Target("nnx", ".msgpack", (JAX,)),
    Target("haiku", ".npz", (JAX,)),
    Target("equinox", ".safetensors", (JAX,)),
    Target("mxnet", ".params"),
    Target("tf1", ".npz"),
    Target("openvino", ".npz"),
    Target("mlx", ".safetensors"),
    Target("cudnn", ".json"),
    Target("onednn", ".json"),
)


@dataclass(frozen=True)
class Conversion:
    """A specimen, or one of its layers, in another kind of file: what was written, or why nothing was."""

    specimen: Specimen
    target: Target
    layer: str = ""
    job: Job | None = None
    expected: list[Any] = field(default_factory=list)
    own: list[Any] = field(default_factory=list)
    exact: bool = True
    refusal: str = ""
    wrong: str = ""

    @property
    def judges(self) -> tuple[Judge, ...]:
        """Who is asked about it; nobody about the weights of an operator, which no layer loads."""
        operators = self.job is None or any(one.layout in OPERATORS for one in self.job.parts)
        return () if operators else self.target.judges


def conversions(specimen: Specimen, target: Target, folder: Path, out: Path) -> Iterator[Conversion]:
    """The whole of a specimen in a kind of file, and where it has several layers, each of them."""
    source, chosen = folder / specimen.file, said_of(specimen)
    try:
        modules = chosen.modules(read(source, chosen.layout, chosen.layouts))
    except StepnetError as error:
        yield Conversion(specimen, target, refusal=str(error))
        return
    known = [one.name for one in modules if short(one.name) in specimen.numbers]
    out.mkdir()
    for place, layer in enumerate([None, *(known if len(modules) > 1 else [])]):
        meant = tuple(one for one in modules if layer in (None, one.name))
        to = target.layout.format(cell=record(meant[0].layouts[0]).cell)
        path = out / f"{place}{target.ending}"
        name = "" if layer is None else short(layer)
        try:
            written = convert_file(source, to, path, choice=replace(chosen, module=layer))
        except StepnetError as error:
            yield Conversion(specimen, target, name, refusal=str(error))
        else:
            yield done(specimen, target, name, written, (*meant, *stacked(meant, chosen.stack)))


def said_of(specimen: Specimen) -> LayoutChoice:
    """The description of a specimen, as the command line takes it: --from, --size and others."""
    words = specimen.options
    behind: Any = {
        option: [value for word, value in pairwise(words) if word == option]
        for option in ("--from", "--size", "--semantics")
    }
    return choice(behind["--from"], None, behind["--size"], behind["--semantics"], "--stack" in words)


def short(name: str) -> str:
    """The name of a layer as specimens have it."""
    return name.rstrip("./_")


def done(
    specimen: Specimen, target: Target, layer: str, written: Written, known: tuple[Module, ...]
) -> Conversion:
    """A conversion that was done, ready to be judged. known: the old modules, alone and as layers of one."""
    old = [next(one for one in known if one.name == name) for name in written.reports]
    pairs = list(zip(old, written.reports.values(), strict=True))
    made = tuple(
        converted_module(module, as_layout(module, report.target, exact=False)) for module, report in pairs
    )
    form = by_ending(Path(written.path))
    whole = not form.of_arrays and len(made) > 1
    names = [ROW] if whole else [short(one.name) for one in made]
    known = [name if name in specimen.numbers else ROW for name in names]
    if not specimen.numbers.keys() >= {*known}:
        return Conversion(
            specimen, target, layer, wrong=f"{', '.join(names)}: not all of them are its layers"
        )
    numbers = [specimen.numbers[name] for name in known]
    several = len(made) > 1
    parts = [
        part(one, report, form, several) for one, report in zip(made, written.reports.values(), strict=True)
    ]
    try:
        layers = [weights(one).layers(np.float64) for one in read_back(written.path, made)]
    except StepnetError as error:
        return Conversion(specimen, target, layer, wrong=f"what was written is not read: {error}")
    inputs = [x for x, _ in numbers]
    tells = "last_only" in form.says and form.is_model(Path(written.path))
    ends = [last if tells and one.last_only else every for one in (made[-1:] if whole else made)]
    return Conversion(
        specimen,
        target,
        layer,
        Job(written.path, parts, inputs),
        [end(y, part) for end, part, (_, y) in zip(ends, parts[-len(ends) :], numbers, strict=True)],
        [
            end(run_here(layers if whole else [layers[place]], x), part)
            for place, (end, part, x) in enumerate(zip(ends, parts[-len(ends) :], inputs, strict=True))
        ],
        all(report.exact for report in written.reports.values()),
    )


def part(module: Module, report: Report, form: Format, several: bool) -> Part:
    """The description of a layer for a judge."""
    names = [entry.name for entry in record(report.target).entries(report.target_sizes)]
    written = replace(module, layouts=(report.target,), arrays=dict.fromkeys(names))
    front = form.front(written) if form.of_arrays and several else ""
    sizes = {name: size for name, size in vars(report.target_sizes).items() if size is not None}
    bias = any("bias" in name for name in module.arrays)
    settings = {**report.settings}
    sizes |= {"output": report.target_sizes.output, "bias": bias}
    return Part(front, report.target, settings, sizes, module.reverse, module.merge)


def every(y: Any, _: Part) -> Any:
    """The outputs of all steps."""
    return y


def last(y: Any, part: Part) -> Any:
    """The output of the last step that a layer takes, each of its directions."""
    width = y.shape[-1] // 2 if part.sizes["directions"] == 2 else 0
    return np.concatenate([y[:, -1, :width], y[:, 0, width:]], -1) if width or part.reverse else y[:, -1]


def run_here(layers: list[Layer], x: Any) -> Any:
    """The results of stepnet for a written file."""
    for layer in layers:
        x = layer(np.asarray(x, np.float64), engine="interpret")[0]
    return x


# ---- what is right -----------------------------------------------------------------------------------------


def wrong(outputs: Any, expected: Any) -> str:
    """The faults of outputs; none where both are right results, each rounded in float32."""
    if outputs.shape != expected.shape:
        return f"shape {outputs.shape} is not {expected.shape}"
    allowed = 2 * tolerance("float32", STEPS, expected.shape[-1] + INPUTS)
    away = distance(outputs, expected)
    return "" if away <= allowed else f"{away:.3g} away, where {allowed:.3g} is allowed"


def judged(
    conversions: list[Conversion],
    folder: Path,
    environments: tuple[str, ...] | None = None,
    run: Callable[[list[str]], None] = in_a_process,
) -> tuple[dict[int, str], dict[str, str]]:
    """The faults of each conversion that a framework was asked about, by its place; and the versions.

    environments: those whose frameworks are asked; by default all. run: what runs a judge's command.
    """
    asked: dict[Judge, list[int]] = {}
    for place, one in enumerate(conversions):
        for judge in one.judges:
            if environments is None or judge.environment in environments:
                asked.setdefault(judge, []).append(place)
    known: dict[int, str] = {}
    versions: dict[str, str] = {}
    for judge, places in asked.items():
        made = folder / f"judge-{judge.name}"
        made.mkdir()
        outputs, its = judge.outputs([conversions[place].job for place in places], made, run)
        versions |= its
        for number, place in enumerate(places):
            failed = outputs.get(f"{number}|wrong")
            right = conversions[place].expected
            pairs = [] if failed is not None else [(outputs[f"{number}|{n}"], y) for n, y in enumerate(right)]
            said = str(failed or next(filter(None, (wrong(*pair) for pair in pairs)), ""))
            known[place] = known.get(place) or (said and f"{judge.name}: {said}")
    return known, versions


def ours(conversion: Conversion) -> str:
    """The faults of a conversion by stepnet's own account; none where all is right."""
    pairs = zip(conversion.own, conversion.expected, strict=True)
    return conversion.wrong or next(filter(None, (wrong(*pair) for pair in pairs)), "")
