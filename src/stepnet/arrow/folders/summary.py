"""The report of a run over folders, and its progress."""

from dataclasses import dataclass
from pathlib import Path

from stepnet.errors import printable


@dataclass(frozen=True)
class Summary:
    """The report of a run.

    files, results: the numbers of inputs and results, including those of earlier runs. before: the number of
    results that existed already. sequences, steps: those of this run, without rows that were set aside.
    features: the numbers of an output. bad: the number of rows that were set aside, including earlier runs.
    passed_over: the number of files in folders that are no tables. seconds: the time of this run. left_out:
    the layers and arrays of the model file that were not run.
    """

    files: int
    results: int
    before: int
    sequences: int
    steps: int
    features: int
    bad: int
    passed_over: int
    seconds: float
    sequences_per_second: float
    output: str
    left_out: tuple[str, ...] = ()

    def text(self, bad: str | Path | None = None) -> str:
        """Formats the report as text. bad: the path of the rows that were set aside."""
        counts = f"{self.sequences} sequences of {self.steps} steps in all: {self.features} outputs each"
        output = printable(self.output)
        where = output if self.results == 1 else f"{self.results} files in {output}"
        lines = [
            f"{counts} in {where}, after {self.seconds:.2f} s ({self.sequences_per_second:.0f} a second)"
        ]
        if self.left_out:
            lines.append(f"recurrent layers alone; left out: {', '.join(self.left_out)}")
        if self.before:
            lines.append(f"{self.before} of {self.results} results were there already")
        if self.bad:
            lines.append(f"{self.bad} rows were set aside in {printable(str(bad))}")
        if self.passed_over:
            lines.append(f"{self.passed_over} other files were passed over")
        return "\n".join(lines)


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    done, total: bytes of inputs, including those of results that existed before. sequences: the number of
    sequences that were run.
    """

    done: float
    total: float
    sequences: int
