"""Times a GRU in WebAssembly beside onnxruntime-web, one frame at a time, in node.

    npm install --prefix FOLDER onnxruntime-web
    python -m bench.devices browser --onnxruntime FOLDER

A GRU of 40 inputs and 128 units, one sequence, float32, whose memory goes from each call to the next. The
ONNX model has one GRU of one step and no axis that is open. Both sides run in one process and alternate in
each round; each has SIMD. onnxruntime-web runs with one thread and, in another process, with one for each
processor. The figures are medians over the rounds, in microseconds a frame, and the bytes that a page loads.
Results that differ by more than 1e-5 are not timed.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import onnx
import typer

import stepnet as sn
import stepnet.onnx
from stepnet.build import build

SCRIPT = Path(__file__).with_suffix(".mjs")
PACKAGE = "node_modules/onnxruntime-web"
LOADED = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
"""The files of onnxruntime-web that a page loads for the processor alone."""
MOST = 1e-5
"""The most by which results may differ."""


def one_frame(gru: sn.RNN, inputs: int, hidden: int, path: Path) -> None:
    """Writes a GRU as an ONNX model of one step: `x` and `h` give `h_next`, all of them [1, 1, features]."""
    graph = sn.Graph(lambda x, params: gru(x), {}, inputs=inputs)
    stepnet.onnx.save(graph, path, layout="TN")
    whole = onnx.load(path)
    (node,) = (each for each in whole.graph.node if each.op_type == "GRU")
    weights = [each for each in whole.graph.initializer if each.name in node.input[1:4]]
    own = onnx.helper.make_node(
        "GRU", ["x", *node.input[1:4], "", "h"], ["", "h_next"], hidden_size=hidden, linear_before_reset=1
    )
    sizes = {"x": inputs, "h": hidden, "h_next": hidden}
    ends = [onnx.helper.make_tensor_value_info(name, 1, [1, 1, size]) for name, size in sizes.items()]
    graph = onnx.helper.make_graph([own], "frame", ends[:2], ends[2:], weights)
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


def in_node(node: str, given: dict[str, Any]) -> Any:
    """Returns what the script prints."""
    done = subprocess.run([node, str(SCRIPT), json.dumps(given)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"node {SCRIPT.name}: {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def checked(onnxruntime: Path) -> Path:
    """Returns the folder of onnxruntime-web's files; raises for a folder without it."""
    files = onnxruntime / PACKAGE / "dist"
    if not files.is_dir():
        raise typer.BadParameter(
            f"{onnxruntime} has no {PACKAGE}: npm install --prefix {onnxruntime} onnxruntime-web",
            param_hint="--onnxruntime",
        )
    return files.resolve()


def command(
    onnxruntime: Annotated[Path, typer.Option(help="A folder outside of this tree with onnxruntime-web.")],
    inputs: Annotated[int, typer.Option(min=1, help="Features of a frame.")] = 40,
    hidden: Annotated[int, typer.Option(min=1, help="Units of the GRU.")] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each side.")] = 15,
    frames: Annotated[int, typer.Option(min=1, help="Frames of a turn.")] = 2000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the times of all rounds as JSON.")] = False,
) -> None:
    """Times a GRU in WebAssembly beside onnxruntime-web, in node."""
    dist = checked(onnxruntime)
    node = shutil.which("node")
    if node is None:
        raise typer.BadParameter("there is no node, in which both sides run", param_hint="node")
    sizes = {"inputs": inputs, "hidden": hidden}
    gru = sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(inputs, hidden))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one_frame(gru, inputs, hidden, folder / "gru.onnx")
        made = build(gru, folder / "gru", name="gru", target="wasm32", weights="beside", inputs=inputs)
        ours = {path.name: path.stat().st_size for path in made.others}
        given = {
            "module": (folder / "gru" / "gru.js").as_uri(),
            "onnxruntime": (dist / "ort.node.min.mjs").as_uri(),
            "model": str(folder / "gru.onnx"),
            "rounds": rounds,
            "frames": frames,
            **sizes,
        }
        runs = {
            threads: in_node(node, {**given, "threads": threads})
            for threads in sorted({1, os.cpu_count() or 1})
        }
    for threads, run in runs.items():
        if not run["away"] <= MOST:
            sys.exit(
                f"with {threads} threads the results of stepnet and onnxruntime-web differ by {run['away']}"
            )
    bytes_ = {
        "stepnet": {name: ours[name] for name in ("gru.wasm", "gru.js")},
        "onnxruntime": {name: (dist / name).stat().st_size for name in LOADED},
    }
    if as_json:
        print(json.dumps({**sizes, "threads": runs, "bytes": bytes_}))
        return
    version = json.loads((dist.parent / "package.json").read_text("utf-8"))["version"]
    print(f"GRU {inputs} -> {hidden}, node {runs[1]['node']}, onnxruntime-web {version}, {rounds} rounds")
    for threads, run in runs.items():
        own, theirs = (np.array(run["microseconds"][side]) for side in ("stepnet", "onnxruntime"))
        print(
            f"{threads} threads of onnxruntime-web: stepnet {median(own):.1f} us a frame, onnxruntime-web "
            f"{median(theirs):.1f} us, {median(theirs / own):.2f} times"
        )
    for side, files in bytes_.items():
        print(f"{side}: {sum(files.values())} bytes ({', '.join(f'{n} {b}' for n, b in files.items())})")
