"""Packages for browsers: in node and in Chromium they have the bits of NumPy's operations on each frame."""

import json
import shutil
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import MODEL, stepnet
from zoo import rnn_of

from stepnet.build import DeviceBuild, build
from stepnet.compiler.targets.frame import FrameProgram, FrameRun
from stepnet.errors import InputError
from tests.build.frame_models import MODELS, Numbers, frames_of

Array = np.ndarray
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="there is no node")
CHROMIUM = shutil.which("chromium")
HALF = 4
RUN = """
import {{ readFileSync }} from "node:fs";
import * as package_ from "./m.js";
const raw = new Uint8Array(readFileSync("frames"));
const frames = new {array}(raw.buffer);
const size = frames.length / {count};
const hex = (arrays) => arrays.map((y) => Buffer.from(y.buffer).toString("hex"));
const written = (given) => [given].flatMap((y) => (ArrayBuffer.isView(y) ? [y] : Object.values(y)));
const results = [];
for (const source of [undefined, readFileSync("m.plain.wasm")]) {{
  const model = await package_.load(source);
  const [one, other] = [model.stream(), model.stream()];
  const first = written(one.step(frames.subarray(0, {half} * size)));
  const saved = one.save();
  other.step(frames);
  other.restore(saved);
  const rest = [];
  for (let t = {half}; t < {count}; t++) {{
    rest.push(written(other.step(frames.subarray(t * size, (t + 1) * size))));
  }}
  one.reset();
  const again = written(one.step(frames.subarray(0, {half} * size)));
  results.push([hex(first), ...rest.map(hex), hex(again)]);
}}
console.log(JSON.stringify(results));
"""


def in_node(folder: Path, script: str) -> Any:
    """The JSON that a script prints in node, which runs it in a folder."""
    (folder / "run.mjs").write_text(script)
    done = subprocess.run([str(NODE), "run.mjs"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def packaged(name: str, folder: Path, **options: Any) -> DeviceBuild:
    """The package of a model."""
    model, inputs = MODELS[name](Numbers("f4"))
    return build(model, folder, name="m", target="wasm32", inputs=inputs, **options)


def outputs_of(program: FrameProgram, frames: Array) -> list[list[bytes]]:
    """The bytes of the outputs of each frame."""
    run = FrameRun(program)
    return [[y.tobytes() for y in run.step(frame)] for frame in frames]


def gru_package(folder: Path, **options: Any) -> DeviceBuild:
    """The package of a small GRU."""
    return build(rnn_of("gru", 3, 5), folder, name="m", target="wasm32", inputs=3, **options)


@needs_node
@pytest.mark.long(every=3)
@pytest.mark.parametrize("name", MODELS)
def test_streams_have_the_bits_of_numpy(name: str, tmp_path: Path):
    made, frames = packaged(name, tmp_path), frames_of(name)
    (tmp_path / "frames").write_bytes(frames.tobytes())
    array = {"int32": "Int32Array", "float64": "Float64Array"}.get(frames.dtype.name, "Float32Array")
    results = in_node(tmp_path, RUN.format(array=array, count=len(frames), half=HALF))
    expected = outputs_of(made.program, frames)
    assert len(results) == 2  # with vectors and without
    for first, *rest, again in results:
        assert first == again == [b"".join(each).hex() for each in zip(*expected[:HALF], strict=True)]
        assert rest == [[y.hex() for y in each] for each in expected[HALF:]]


REFUSALS = """
import {{ readFileSync }} from "node:fs";
import * as package_ from "./m.js";
const model = await package_.load();
const weights = readFileSync("m.weights");
const spoilt = (bytes, at) => Uint8Array.from(bytes, (byte, i) => (i === at ? byte ^ 1 : byte));
const stream = model.stream();
const saved = stream.save();
const closed = model.stream();
closed.close();
const tried = [
  () => package_.load(undefined, spoilt(weights, 7)),
  () => package_.load(undefined, weights.subarray(1)),
  () => package_.load(readFileSync("other.wasm")),
  () => package_.load(readFileSync("inside/m.wasm"), weights),
  () => package_.load(readFileSync("beside/m.wasm"), weights),
  () => package_.load(new Response(weights)),
  () => stream.restore(spoilt(saved, 0)),
  () => stream.restore(spoilt(saved, 9)),
  () => stream.restore(saved.subarray(1)),
  () => stream.step(new Float32Array(4)),
  () => stream.step(new Float64Array(3)),
  () => closed.step(new Float32Array(3)),
  () => closed.close(),
];
const messages = [];
for (const each of tried) {{
  try {{
    await each();
    messages.push(null);
  }} catch (error) {{
    messages.push(error.message);
  }}
}}
console.log(JSON.stringify(messages));
"""


@needs_node
def test_what_is_damaged_or_of_another_model_is_refused(tmp_path: Path):
    made = gru_package(tmp_path, weights="beside")
    other = build(rnn_of("lstm", 3, 5), tmp_path / "other", name="n", target="wasm32-plain", inputs=3)
    shutil.copy(next(path for path in other.others if path.suffix == ".wasm"), tmp_path / "other.wasm")
    for where in ("inside", "beside"):  # of the same name, and built later
        folder = tmp_path / where
        build(rnn_of("gru", 3, 6), folder, name="m", target="wasm32-plain", inputs=3, weights=where)
    assert in_node(tmp_path, REFUSALS.format()) == [
        "the file of weights is damaged, or of another model: copy or build it again",
        f"the file of weights has {(tmp_path / 'm.weights').stat().st_size - 1} bytes, not "
        f"{(tmp_path / 'm.weights').stat().st_size}: copy or build it again",
        *["this WebAssembly module is not that of the model m, or of another build"] * 3,
        "a module, and a file of weights, is a URL, an ArrayBuffer or a Uint8Array",
        "the saved state is that of another model",
        "the saved state is damaged",
        f"what was saved is a Uint8Array of {made.sizes.saved_bytes} bytes",
        "x has 4 numbers, and a frame has 3",
        "x is a Float32Array, of 3 numbers per frame",
        "the stream is closed",
        "the stream is closed",
    ]


@needs_node
def test_saved_states_are_those_of_source_code(tmp_path: Path):
    made = gru_package(tmp_path)
    script = """
    import { load } from "./m.js";
    const stream = (await load()).stream();
    stream.step(Float32Array.of(1, 2, 3));
    console.log(JSON.stringify(Array.from(stream.save())));
    """
    saved = bytes(in_node(tmp_path, script))
    source = build(rnn_of("gru", 3, 5), tmp_path / "c", name="m", target="c", inputs=3).source
    assert source is not None
    assert f"UINT32_C({int.from_bytes(saved[:4], 'little')})" in source.read_text()
    run = FrameRun(made.program)
    run.step(np.array([1, 2, 3], "float32"))
    assert saved[4:-4] == run.buffers["memory_h"].tobytes()
    checksum = 2166136261  # FNV-1a
    for byte in saved[:-4]:
        checksum = (checksum ^ byte) * 16777619 % 2**32
    assert int.from_bytes(saved[-4:], "little") == checksum


@needs_node
def test_an_index_outside_of_its_table_is_an_error(tmp_path: Path):
    packaged("embedded", tmp_path)
    script = """
    import { load } from "./m.js";
    const stream = (await load()).stream();
    const before = String(stream.save());
    const messages = [Int32Array.of(9), Int32Array.of(1, 2, 9)].map((given) => {
      try { stream.step(given); } catch (error) { return error.message; }
    });
    console.log(JSON.stringify([...messages, String(stream.save()) === before]));
    """
    message = "an index is outside of its table; the memories are as before"
    assert in_node(tmp_path, script) == [message, message, True]


@needs_node
def test_streams_are_as_many_as_memory_holds(tmp_path: Path):
    gru_package(tmp_path)
    script = """
    import { load } from "./m.js";
    const model = await load();
    const x = Float32Array.of(1, 2, 3);
    const streams = Array.from({ length: 2000 }, () => model.stream());
    const outputs = new Set(streams.map((stream) => String(stream.step(x))));
    console.log(JSON.stringify(outputs.size));
    """
    assert in_node(tmp_path, script) == 1


def test_a_package_is_small_and_needs_nothing(tmp_path: Path):
    made = build(
        rnn_of("gru", 40, 128), tmp_path, name="Noise_gate", target="wasm32", inputs=40, weights="beside"
    )
    sizes = {path.name: path.stat().st_size for path in made.others}
    assert sizes["Noise_gate.wasm"] < 4_000
    assert sizes["Noise_gate.plain.wasm"] < 4_000
    assert sum(sizes.values()) < 20_000
    package = json.loads((tmp_path / "package.json").read_text())
    assert package["name"] == "noise-gate"
    assert "dependencies" not in package
    assert all((tmp_path / file).exists() for file in package["files"])
    assert "step(given: Float32Array): Float32Array;" in (tmp_path / "Noise_gate.d.ts").read_text()
    assert made.header is made.source is made.static is None


def test_types_of_several_arrays_are_those_of_an_object(tmp_path: Path):
    packaged("operations", tmp_path)
    text = (tmp_path / "m.d.ts").read_text()
    assert "step(given: Float32Array): { y_0: Float32Array; y_1: Float32Array;" in text
    assert "y_3: BigInt64Array;" in text
    assert "y_6: Uint8Array; y_7: Float32Array; };" in text


def test_a_package_of_the_name_package_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="which has a file package"):
        build(rnn_of("gru", 3, 5), tmp_path, name="package", target="wasm32", inputs=3)


def test_the_command_lists_all_files(tmp_path: Path):
    given = ["build", "--recurrent-only", MODEL, "-o", tmp_path, "--target", "wasm32", "--name", "v"]
    code, out, err = stepnet(*given, "--json")
    assert err == ""
    written = json.loads(out)
    assert code == 0
    assert {Path(path).name for path in written["others"]} == {
        *("package.json", "v.js", "v.d.ts", "v.wasm", "v.plain.wasm"),
    }
    assert written["sizes"]["multiply_adds"] > 0


PAGE = """<!doctype html><title>begun</title><script type="module">
import {{ load }} from "./m.js";
const y = (await load()).stream().step(Float32Array.of({numbers}));
document.title = Array.from(new Uint8Array(y.buffer), (byte) => byte.toString(16).padStart(2, "0")).join("");
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_a_page_runs_a_model_in_chromium(tmp_path: Path):
    made = gru_package(tmp_path, weights="beside")
    x = np.array([0.5, -1, 2], "float32")
    (tmp_path / "index.html").write_text(PAGE.format(numbers=", ".join(map(str, x))))
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))

    with ThreadingHTTPServer(("localhost", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
        url = f"http://localhost:{server.server_port}/"
        command = [str(CHROMIUM), *options, "--virtual-time-budget=5000", "--dump-dom", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        server.shutdown()
    assert f"<title>{outputs_of(made.program, x[None])[0][0].hex()}</title>" in done.stdout
