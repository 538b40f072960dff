"""Arguments of `run`, checked, and the jobs that follow from them."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stepnet.arrow.folders.listing import ENDINGS, Listing
from stepnet.arrow.folders.plan import ARROW_ENDINGS, Job, jobs_of
from stepnet.arrow.folders.result_files import COMPRESSIONS
from stepnet.arrow.folders.tables import FILES, TableFile
from stepnet.arrow.predictor import JOINED, Predictor, Selection, check_columns, read_source, runnable_of
from stepnet.arrow.runnable import OUTPUTS
from stepnet.compiler.targets import checked_engine
from stepnet.compiler.values.arguments import choice, flag, instance, local_path
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.version import __version__
from stepnet.errors import FileError, InputError, named, printable
from stepnet.layout.options import option
from stepnet.model.program import Asked
from stepnet.ragged.arrow import lists_from, pyarrow_module

FORMATS = {"parquet": ".parquet", "arrow": ".arrow"}

HERE = (
    "results are written to a folder of this machine: mount it, or use stepnet.ray.predict, whose dataset is "
    "written anywhere"
)


@dataclass(frozen=True)
class Destination:
    """Where and in what format results are written.

    path: a folder; a file if `alone`. format: parquet or arrow. resume: whether results that exist are used.
    force: whether a file that exists is replaced.
    """

    path: Path
    alone: bool
    format: str
    compression: str
    resume: bool
    force: bool

    @classmethod
    def of(
        cls,
        output: str | Path,
        found: Listing,
        resume: bool,
        force: bool,
        file_format: str | None,
        compression: str | None,
    ) -> "Destination":
        """Checks the arguments of `run` about the output, and returns them together. Raises `InputError` or
        `FileError` if they do not fit together. Format and compression have defaults for None.

        found: the inputs; if they are a single file, the output may be a file.
        """
        path = local_path(output, "output", HERE)
        if str(output) == "-":
            raise InputError("results are written to a folder or a file, and not to stdout: output is a path")
        resume, force, alone = flag(resume, "resume"), flag(force, "force"), is_file(found, output, path)
        single = len(found.files) == 1 and not found.folders
        if single and not alone and os.path.lexists(path) and not path.is_dir():
            raise FileError(
                f"{path}: this is not a folder; an output file has an ending, such as .parquet, and no "
                "/ after it"
            )
        if not single and names_file(output, path) and path.suffix.lower() in ENDINGS:
            raise FileError(
                f"{printable(str(path))}: the results of these inputs are a folder, and this is the name of "
                f"a file; {printable(str(path))}/ denotes a folder"
            )
        if force and (resume or not alone):
            folder = f"{printable(str(path))} is a folder"
            reason = f"{option('resume')} continues with the results that are there" if resume else folder
            raise InputError(f"{option('force')} replaces an output file, and {reason}")
        if alone and path.suffix.lower() not in ENDINGS:
            raise FileError(
                f"{printable(str(path))}: results are Parquet or Arrow files, and the ending "
                f"{path.suffix} is not one of theirs: {', '.join(ENDINGS)}"
            )
        chosen_format = format_of(file_format, path if alone else None)
        chosen_compression = choice(
            COMPRESSIONS[chosen_format][0] if compression is None else compression,
            f"compression of {chosen_format} is {' or '.join(COMPRESSIONS[chosen_format])}",
            COMPRESSIONS[chosen_format],
        )
        return cls(path, alone, chosen_format, chosen_compression, resume, force)


@dataclass(frozen=True)
class RunRequest:
    """The model and the jobs of a run.

    selection: the model and the columns of the first file to use. mark: version, model and options, which are
    the same for all results. jobs: the results to make, in their order.
    """

    predictor: Predictor
    selection: Selection
    mark: dict[str, Any]
    jobs: tuple[Job, ...]

    @classmethod
    def of(
        cls,
        found: Listing,
        target: Destination,
        model: Any,
        column: str | None,
        result: str,
        keep: Iterable[str] | None,
        engine: Asked,
        refuse_nan: bool,
        recurrent_only: bool,
    ) -> "RunRequest":
        """Checks the arguments of `run` about model and columns, and lists the jobs; opens all files, but
        reads no rows.

        found: the inputs. target: the output. The other arguments are as for `run`.
        """
        checked_engine(engine)
        choice(result, "result is 'last' or 'outputs'", OUTPUTS)
        if column is not None:
            instance(column, str, "column is the name of the list column")
        source = read_source(model, flag(recurrent_only, "recurrent_only"))
        runnable_of(source, result, engine)  # refuses a model of several inputs before any file is opened
        first = TableFile.of(found.files[0].path)
        with named(first.name):
            name = list_column(first.schema, column)
        predictor = Predictor(source, name, result, keep, memory=JOINED, engine=engine, refuse_nan=refuse_nan)
        with named(first.name):
            selection = predictor.select(first.schema)
        options = {
            "column": name,
            "result": result,
            "keep": predictor.keep and list(predictor.keep),
            "engine": str(engine),
            "refuse_nan": predictor.refuse_nan,
            "compression": target.compression,
        }
        digest = predictor.runnable.digest(selection.column.spec)
        mark: dict[str, Any] = {"version": __version__, "model": digest, "options": options}
        if predictor.left_out:
            mark["left_out"] = list(predictor.left_out)
        jobs = jobs_of(found, target.path, target.alone, FORMATS[target.format], predictor.select, mark)
        return cls(predictor, selection, mark, tuple(jobs))


def is_file(found: Listing, output: str | Path, target: Path) -> bool:
    """Returns True if the output is a file, not a folder: the input is one file, and the output's name has an
    ending, no slash after it, and is not that of an existing folder.

    output: as the user wrote it. target: its path.
    """
    return len(found.files) == 1 and not found.folders and names_file(output, target)


def names_file(output: str | Path, target: Path) -> bool:
    """Returns True if the output's name has an ending, no slash after it, and is not that of an existing
    folder. output: as the user wrote it. target: its path.
    """
    has_slash = os.fspath(output).endswith((os.sep, os.altsep or os.sep))
    return bool(target.suffix) and not has_slash and not os.path.isdir(target)


def format_of(asked: str | None, file: Path | None) -> str:
    """Returns the format of the result files, "parquet" or "arrow". Raises `InputError` for another format,
    and for a format that contradicts the ending of the output file.

    asked: the format that the user asks for; None for the format of the ending, or "parquet" for a folder.
    file: the path of an output file; None for an output folder.
    """
    ending = "parquet" if file is None or file.suffix.lower() not in ARROW_ENDINGS else "arrow"
    chosen = choice(
        ending if asked is None else asked, f"file_format is {' or '.join(FORMATS)}", tuple(FORMATS)
    )
    if file is not None and chosen != ending:
        raise InputError(
            f"{printable(str(file))}: the format is {chosen}, and this name has the ending of {ending}"
        )
    return chosen


def parquet_path(bad: Any) -> Path:
    """Returns the user's path for rows that cannot be run; raises `InputError` unless it ends in .parquet."""
    path = local_path(bad, "bad", HERE)
    if path.suffix != ".parquet":
        right = printable(str(path.with_suffix(".parquet")))
        raise InputError(
            f"{printable(str(path))}: {option('bad')} names a Parquet file, which ends in .parquet: {right}"
        )
    return path


def list_column(schema: Any, asked: str | None) -> str:
    """Returns the name of the column of sequences in an Arrow schema: `asked`, or the only list column.
    Lists of other than numbers, such as of strings, do not count. Raises `InputError` if it is missing,
    ambiguous or not of lists.
    """
    types = pyarrow_module("pyarrow.types", FILES)
    lists = [field for field in schema if types.is_list(field.type) or types.is_large_list(field.type)]
    if asked is not None:
        check_columns(schema, [asked])
        field = schema.field(asked)
        if field not in lists:
            raise InputError(
                f"column `{printable(asked)}` holds {field.type}; the column of sequences holds lists"
                f"{''.join(lists_from([field.type]))}"
            )
        return asked
    found = [field.name for field in lists if holds_numbers(field.type)]
    if not found:
        held = printable(", ".join(f"{field.name} ({field.type})" for field in schema)) or "none"
        advice = "".join(lists_from(field.type for field in schema if holds_numbers(field.type)))
        raise InputError(f"there is no list column of numbers; there are {held}{advice}")
    if len(set(found)) > 1:
        raise InputError(
            f"there are {len(found)} list columns ({printable(', '.join(found))}); choose one with "
            f"{option('column')}"
        )
    check_columns(schema, found[:1])
    return found[0]


def holds_numbers(type_: Any) -> bool:
    """Returns whether the innermost lists of an Arrow type hold numbers, or dictionaries of numbers."""
    types = pyarrow_module("pyarrow.types", FILES)
    while hasattr(type_, "value_type"):
        type_ = type_.value_type
    return types.is_integer(type_) or types.is_floating(type_) or types.is_boolean(type_)
