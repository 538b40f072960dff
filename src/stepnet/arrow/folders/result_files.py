"""Files of results, Parquet or Arrow, that get their names only when they are complete and on disk.

    rows --ResultFile.write--> .day.parquet.partial --ResultFile.finish--> fsync, rename --> day.parquet

A lock on the partial file keeps two processes from writing the same result.
"""

import errno
import os
import sys
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from stepnet.arrow.folders.dictionaries import Dictionaries, no_rows
from stepnet.arrow.folders.locks import locked_folder, locked_partial
from stepnet.arrow.folders.marks import MARK, ROWS, canonical_json
from stepnet.arrow.folders.tables import FILES
from stepnet.compiler.values.renaming import replace_file
from stepnet.errors import FileError, named
from stepnet.layout.options import option
from stepnet.ragged.arrow import pyarrow_module

COMPRESSIONS = {"parquet": ("snappy", "none", "zstd"), "arrow": ("none", "zstd")}
"""The compressions of each format; the first one is the default."""


class ResultFile:
    """A result file that is being written.

    form: parquet or arrow. plain: the column that is written without a dictionary and without statistics.

    Its methods raise `FileError` if the file cannot be written; `drop` removes it then.
    """

    def __init__(
        self, path: Path, schema: Any, mark: dict[str, Any], form: str, compression: str, plain: str = ""
    ) -> None:
        """Creates and locks the partial file of a result, beside its later place, and writes the schema with
        the metadata `mark`.

        path: the name of the complete file. mark: metadata on the model, options and input of the result.
        form: parquet or arrow. compression: one of `COMPRESSIONS`. plain: a column to write without
        dictionary and statistics.
        """
        self.path, self.partial = path, partial_of(path)
        self.form = form
        self.schema = schema.with_metadata({MARK: canonical_json(mark)})
        with write_errors(path):
            make_folder(path.parent)
            self.lock = locked_partial(self.partial)
            try:
                self.file = pyarrow_module("pyarrow", FILES).OSFile(os.fsencode(self.partial), "wb")
                try:
                    self.writer = self._open_writer(compression, plain)
                except BaseException:
                    self.file.close()
                    raise
            except BaseException:
                self.partial.unlink(missing_ok=True)
                self.lock.close()
                raise
        self.last: Any = None
        self.dictionaries = Dictionaries() if form == "arrow" else None

    def _open_writer(self, compression: str, plain: str) -> Any:
        """Opens pyarrow's writer of a result file, Parquet or Arrow by `form`. plain: a column of Parquet
        without dictionary and statistics, such as that of outputs, for which they would only take time.
        """
        if self.form == "arrow":
            ipc = pyarrow_module("pyarrow.ipc", FILES)
            kind = None if compression == "none" else compression
            options = ipc.IpcWriteOptions(compression=kind, emit_dictionary_deltas=True)
            return ipc.new_file(self.file, self.schema, options=options)
        return pyarrow_module("pyarrow.parquet", FILES).ParquetWriter(
            self.file,
            self.schema,
            compression=compression,
            use_dictionary=[name for name in self.schema.names if name != plain],
            write_statistics=[name for name in self.schema.names if name != plain],
        )

    def write(self, records: Any) -> None:
        """Adds the rows of a record batch to the result file: as a row group of Parquet, or as a batch of
        Arrow, whose dictionaries are joined with those before. Raises `FileError` if it cannot be written.
        """
        with write_errors(self.path), named(str(self.path)):
            if self.dictionaries is not None:
                records = self.dictionaries.unify(records)
            self.last = records.replace_schema_metadata(self.schema.metadata)
            try:
                self.writer.write_batch(self.last)
            except pyarrow_module().ArrowInvalid as error:
                if self.dictionaries is not None and self.dictionaries.unjoined:
                    raise FileError(self.dictionaries.refusal_text()) from error
                raise

    def finish(self, end: dict[str, Any]) -> None:
        """Completes the result file: writes the metadata `end` (the counts of rows, after the rows), syncs it
        to disk and renames it to its final name.
        """
        counts = canonical_json(end)
        with write_errors(self.path):
            if self.form == "arrow":
                # A batch without rows, but with the joined dictionaries: an Arrow file has one per column.
                empty = no_rows(self.schema) if self.last is None else self.last.slice(0, 0)
                self.writer.write_batch(empty, custom_metadata={ROWS: counts})
            else:
                self.writer.add_key_value_metadata({ROWS: counts})
            self.writer.close()
            self.file.close()
            sync_file(self.partial)
            replace_file(self.partial, self.path)
            sync_folder(self.path.parent)
        self.lock.close()

    def drop(self) -> None:
        """Closes and removes the unfinished result file, and releases its lock."""
        for stream in (self.writer, self.file):
            with suppress(OSError, ValueError):  # it is removed in any case
                stream.close()
        with suppress(PermissionError):  # another program has it open: the next run removes it
            self.partial.unlink(missing_ok=True)
        self.lock.close()


def partial_of(path: Path) -> Path:
    """Returns the path that a result file has until it is complete, with a hidden name beside its own."""
    return path.with_name(f".{path.name}.partial")


def remove_partial(path: Path) -> None:
    """Removes the unfinished file of a process that ended; raises `FileError` if the process still runs."""
    with write_errors(path), closing(locked_partial(path)):
        path.unlink()


def make_folder(folder: Path) -> None:
    """Makes a folder and any number of missing folders above it: `Path.mkdir` would recurse for each."""
    try:
        folder.mkdir(exist_ok=True)
    except FileNotFoundError:
        missing = takewhile(lambda above: not above.is_dir(), folder.parents)
        for directory in (*reversed([*missing]), folder):
            directory.mkdir(exist_ok=True)


def remove_folder(folder: Path) -> None:
    """Removes a folder and its content at any depth: `shutil.rmtree` would recurse for each level."""
    folders = [folder]
    for directory in folders:
        with os.scandir(directory) as inside:
            for entry in inside:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                else:
                    os.unlink(entry.path)
    for directory in reversed(folders):
        directory.rmdir()


@contextmanager
def lock_folder(folder: Path) -> Generator[None]:
    """Makes a folder and locks it during its `with` block; raises `FileError` if another run has locked it. A
    folder that is empty at the end is removed.
    """
    with ExitStack() as held:
        with write_errors(folder):
            make_folder(folder)
            held.enter_context(locked_folder(folder))
        yield


def sync_file(path: Path) -> None:
    """Writes the content of a file to disk, as a crash could otherwise leave a result without it."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Writes the entries of a folder to disk, so that a renamed file survives a crash; not on Windows."""
    if sys.platform != "win32":
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@contextmanager
def write_errors(path: Path) -> Generator[None]:
    """Converts OS errors and pyarrow's errors of its `with` block to a `FileError` that says that the file at
    `path`, or one of its columns, cannot be written, and the remedy.
    """
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        if error.errno == errno.ENOSPC:
            reason += f"; free some space, then continue with {option('resume')}"
        raise FileError(f"{path}: the file cannot be written ({reason})") from error
    except pyarrow_module("pyarrow", FILES).ArrowException as error:
        raise FileError(
            f"{path}: a column cannot be written ({error}); name the columns to pass on with "
            f"{option('keep')}, or choose another format"
        ) from error
