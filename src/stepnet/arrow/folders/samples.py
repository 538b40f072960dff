"""The sequences of Parquet and Arrow files, piece by piece, without their results."""

from collections.abc import Iterator
from typing import Any

from stepnet.arrow.folders.listing import listing
from stepnet.arrow.folders.plan import whole_part
from stepnet.arrow.folders.request import list_column
from stepnet.arrow.folders.tables import TableFile
from stepnet.arrow.predictor import Predictor
from stepnet.errors import named
from stepnet.model_file import FileModel
from stepnet.ragged import Ragged


def sequences_of(inputs: Any, model: FileModel, column: str | None = None) -> Iterator[Ragged]:
    """The sequences of files, folders and globs as a model takes them; rows that are null are left out.

    column: the list column; not needed if it is the only one. Raises what `run` raises for such inputs.
    """
    for each in listing(inputs).files:
        table = TableFile.of(each.path)
        with named(str(each.path)):
            name = list_column(table.schema, column)
            predictor = Predictor(model, name, "outputs", keep=())
            chosen = predictor.choose(table.schema)
        for batch, _ in table.chunks(whole_part(table), name, chosen):
            for piece in predictor.pieces(batch, chosen):
                null = piece.null
                yield piece.sequences if null is None else piece.sequences.take((~null).nonzero()[0])
