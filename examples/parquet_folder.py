"""A folder of Parquet files, run by a trained model: interrupted, resumed, and summed up in a picture.

The 370 test utterances of Japanese Vowels are written as a folder with one file per speaker. A classifier,
the GRU of stepnet's demo with its dense layer, runs over it as `stepnet run` does: results are files of the
same names, a run that was stopped goes on where it was, and rows that cannot be run go to a file of their
own.

Run it from the root of the repository (a few seconds):

    .venv/bin/python examples/parquet_folder.py [--folder FOLDER] [--plot FILE]

`--plot` draws who was taken for whom, and needs matplotlib.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as parquet

import stepnet as sn
from stepnet import arrow
from stepnet.layout import from_torch
from stepnet.layout.files.safetensors import read

DATA = Path(__file__).resolve().parents[1] / "src" / "stepnet" / "cli" / "data"
SPEAKERS = 9


def classifier() -> sn.Graph:
    """Returns the model: scores [utterances, speakers] of the GRU's last state."""
    weights = read(DATA / "speaker_gru.safetensors")
    gru = from_torch(weights, prefix="gru.")
    head = {"W": weights["head.weight"].T.copy(), "b": weights["head.bias"]}

    def model(frames, params):
        _, last = gru(frames)
        return {"scores": last @ params["W"] + params["b"]}

    return sn.Graph(model, head)


def write(folder: Path) -> int:
    """Writes the test utterances, a file for each speaker, and returns their number."""
    table = parquet.read_table(DATA / "japanese_vowels.parquet", filters=[("split", "==", "test")])
    for speaker in range(1, SPEAKERS + 1):
        of_speaker = table.filter(pc.field("speaker") == speaker).select(["frames"])
        path = folder / f"speaker={speaker}" / "utterances.parquet"
        path.parent.mkdir(parents=True)
        parquet.write_table(of_speaker, path)
    return table.num_rows


def confusion(results: Path) -> np.ndarray:
    """Returns how many utterances of each speaker (row) were taken for each speaker (column)."""
    hive = ds.partitioning(pa.schema([("speaker", pa.int64())]), flavor="hive")
    table = ds.dataset(results, partitioning=hive).to_table()
    scores = np.stack(table["last"].combine_chunks().field("scores").to_numpy(zero_copy_only=False))
    counts = np.zeros((SPEAKERS, SPEAKERS), int)
    np.add.at(counts, (table["speaker"].to_numpy() - 1, scores.argmax(axis=1)), 1)
    return counts


def plot(counts: np.ndarray, file: Path) -> None:
    """Draws the counts as a table of colours."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.imshow(counts, cmap="Blues")
    for (row, column), count in np.ndenumerate(counts):
        if count:
            colour = "white" if count > counts.max() / 2 else "black"
            axes.text(column, row, str(count), ha="center", va="center", color=colour)
    ticks = range(SPEAKERS)
    axes.set(xticks=ticks, yticks=ticks, xlabel="taken for speaker", ylabel="utterances of speaker")
    axes.set_xticklabels([str(tick + 1) for tick in ticks])
    axes.set_yticklabels([str(tick + 1) for tick in ticks])
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def main(arguments: list[str] | None = None) -> None:
    """Runs the model over a part of the folder, then over the rest of it, and prints what was right."""
    parser = argparse.ArgumentParser(description="Run a classifier over a folder of Parquet files.")
    parser.add_argument("--folder", type=Path, help="where the files go; a temporary folder by default")
    parser.add_argument("--plot", type=Path, help="a picture of the results; needs matplotlib")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        home = options.folder or Path(temporary)
        calls, scores = home / "calls", home / "scores"
        count, model = write(calls), classifier()
        arrow.run(str(calls / "speaker=[1-4]" / "*.parquet"), model, str(scores), result="last")
        done = arrow.run(str(calls), model, str(scores), result="last", resume=True)
        counts = confusion(scores)
    print(f"{done}")
    print(f"{np.trace(counts)} of {count} utterances right ({np.trace(counts) / count:.1%})")
    if options.plot:
        plot(counts, options.plot)


if __name__ == "__main__":
    main()
