"""The demo's speaker classifier in a browser: recordings or the microphone, and what the memory does.

The GRU and its linear layer become WebAssembly by `build`, and the page runs them frame by frame. The page is
a folder of static files below 100 KB that loads nothing from elsewhere.

Run it from the root of the repository (two seconds), then serve the folder, as browsers load neither modules
nor WebAssembly from files:

    .venv/bin/python examples/speaker_page.py build/page
    .venv/bin/python -m http.server --bind localhost --directory build/page
"""

import argparse
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

import stepnet as sn
from stepnet.build import DeviceBuild, build
from stepnet.cli.demo import Speakers, gru, load

Array = np.ndarray
SOURCES = Path(__file__).resolve().parent / "speaker_page_files"
HIDDEN, FEATURES, SPEAKERS = 64, 12, 9
COLUMNS = 20
"""The frames of an utterance that the page has room for; those of the training have 7 to 26."""
SHORT = 12
"""The frames of an utterance that is recorded on the page, or more where a speaker has none as short."""
WRONG = 36
"""The row of an utterance that the network tells wrong, which the page has besides one of each speaker."""


COMMENTS = re.compile(r"^ *(//[^\n]*|/\*\*.*?\*/)\n", re.MULTILINE | re.DOTALL)
"""The comments of a script that have lines of their own, which the page does without."""


def listener(x: Array, h: Array, weights: dict[str, Array]) -> tuple[dict[str, Array], Array]:
    """Computes one frame: the scores of the speakers and the memory, and the next memory."""
    _, h = gru(x, h, weights)
    return {"scores": h @ weights["head.weight"].T + weights["head.bias"], "memory": h}, h


def chosen(data: Speakers) -> list[int]:
    """Returns the rows of the utterances on the page: a short one of each speaker, and one told wrong."""
    lengths = data.utterances.lengths
    order = np.lexsort([lengths, lengths < SHORT])
    firsts = [order[np.argmax(data.speakers[order] == speaker)] for speaker in range(1, SPEAKERS + 1)]
    return [*map(int, firsts), WRONG]


def make(folder: Path) -> DeviceBuild:
    """Makes the page in a folder. Returns what `build` made of the network."""
    data = load()
    weights = {**data.recurrent, **{n: w for n, w in data.weights.items() if n.startswith("head.")}}
    rnn = sn.RNN(listener, weights, memory=HIDDEN)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        package = {"name": "speakers", "target": "wasm32", "weights": "beside", "inputs": FEATURES}
        made = build(rnn, place, **package)
        modules = sorted(Path(place).glob("*.wasm"))
        for path in (Path(place) / "speakers.weights", *modules, SOURCES / "page.css"):
            shutil.copy(path, folder)
        for path in (Path(place) / "speakers.js", *SOURCES.glob("*.js")):
            (folder / path.name).write_text(COMMENTS.sub("", path.read_text("utf-8")), encoding="utf-8")
    rows = chosen(data)
    frames = [np.asarray(data.utterances[row], "<f4") for row in rows]
    (folder / "utterances.f32").write_bytes(np.concatenate(frames).tobytes())
    begins = np.cumsum([0, *map(len, frames)])
    environment = Environment(loader=FileSystemLoader(SOURCES), autoescape=True, undefined=StrictUndefined)
    facts: dict[str, Any] = {
        "hidden": HIDDEN,
        "columns": COLUMNS,
        "kilobytes": round((folder / "speakers.wasm").stat().st_size / 1000),
        "utterances": [
            {"begin": begin, "frames": len(each), "speaker": data.speakers[row]}
            for row, begin, each in zip(rows, begins, frames, strict=False)
        ],
    }
    page = environment.get_template("index.html.jinja").render(facts)
    (folder / "index.html").write_text(page, encoding="utf-8")
    return made


def main(arguments: list[str] | None = None) -> None:
    """Makes the page, and prints its size and how to open it."""
    parser = argparse.ArgumentParser(description="Make the page of the speaker classifier.")
    parser.add_argument("folder", type=Path, help="the folder for the page")
    folder = parser.parse_args(arguments).folder
    make(folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size / 1000:.1f} KB. Open it by a server of files, such as")
    print(f"python -m http.server --bind localhost --directory {folder}")


if __name__ == "__main__":
    main()
