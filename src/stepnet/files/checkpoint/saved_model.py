"""The variables of a TensorFlow SavedModel: a folder with saved_model.pb, and a checkpoint in its variables/.

Names are those that the program gave its variables, where the checkpoint tells, so that Keras' layers are
found by theirs. The graph, which is code, is passed over.
"""

from pathlib import Path

from stepnet.errors import FileError
from stepnet.files.checkpoint import file
from stepnet.files.checkpoint.file import Array
from stepnet.files.checkpoint.objects import program_names, renamed

GRAPH = "saved_model.pb"


def read(path: str | Path) -> dict[str, Array]:
    """The variables of a SavedModel by name; path is its folder, or the saved_model.pb in it.

    Raises `FileError`, with the path, for one without variables, and for a checkpoint that is broken.
    """
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    prefix = folder / "variables" / "variables"
    if not Path(f"{prefix}.index").is_file():
        raise FileError(
            f"{path}: it has no variables/variables.index: its numbers are constants of the graph, which is "
            "not read; save the model before it is frozen"
        )
    arrays = file.read(prefix)
    return renamed(Path(path), arrays, program_names(str(prefix)))
