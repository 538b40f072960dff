"""Damaged Parquet and Arrow files are refused by their name, and never end the process."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pytest

from stepnet import arrow
from stepnet.errors import FileError
from tests.arrow.folders.folder_cases import FRAMES, RNN, table_of, written

FLIPS = """
import sys
from pathlib import Path
from tests.arrow.folders.folder_cases import RNN
from stepnet import arrow
from stepnet.errors import StepnetError

source, flips = Path(sys.argv[1]), sys.argv[2]
right, damaged, refused = source.read_bytes(), source.with_name("damaged" + source.suffix), 0
for flip in flips.split():
    place, bit = map(int, flip.split(":"))
    content = bytearray(right)
    content[place] ^= bit
    damaged.write_bytes(content)
    try:
        arrow.run(damaged, RNN, source.with_name(flip), column="frames")
    except StepnetError as error:
        assert "\\n" not in str(error), error
        refused += 1
print(refused)
"""


def refused_flips(source: Path, places: range, bits: tuple[int, ...]) -> int:
    """The number of files with one flipped bit that a new process refuses; it must come to its end."""
    flips = " ".join(f"{place}:{bit}" for place in places for bit in bits)
    command = [sys.executable, "-c", FLIPS, str(source), flips]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout)


def test_a_flipped_bit_in_the_footer_of_a_parquet_file_does_not_end_the_process(
    tmp_path: Path, request: pytest.FixtureRequest
):
    source = written(tmp_path / "a.parquet", table_of(0, 3))
    content = source.read_bytes()
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    step = 1 if request.config.getoption("--long") else 7
    assert refused_flips(source, range(begin, len(content) - 8, step), (1, 2, 16)) > 20


def test_a_flipped_bit_in_the_offsets_of_an_arrow_file_does_not_end_the_process(tmp_path: Path):
    count = 40
    table = pa.table({"s": [["abc"]] * count, "frames": pa.array([[[1.0, 2.0]]] * count, FRAMES)})
    source = written(tmp_path / "a.arrow", table, group=count)
    offsets = source.read_bytes().index(np.arange(count + 1, dtype="i4").tobytes())
    assert refused_flips(source, range(offsets + 4 * count + 3, offsets + 4 * count + 4), (64,)) == 1


@pytest.mark.parametrize("column", [[1], [{"userid": 1}]])
def test_a_name_of_a_column_that_is_no_text_is_refused(tmp_path: Path, column: list[object]):
    path, name = tmp_path / "a.arrow", "userid" if column == [1] else "user"
    table = pa.table({name: column, "frames": pa.array([[[1.0, 2.0]]], FRAMES)})
    with ipc.new_file(path, table.schema) as file:
        file.write_table(table)
    path.write_bytes(path.read_bytes().replace(b"userid", b"us\xecrid"))
    with pytest.raises(FileError, match=r"a\.arrow: this is not a complete Arrow file \('utf-8'"):
        arrow.run(path, RNN, tmp_path / "out", column="frames", keep=[])
