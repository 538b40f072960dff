"""The report of a quantization as JSON."""

from typing import Any

from stepnet.errors import ModelError
from stepnet.model.graph.report import OutputError, Quantization, QuantizedRecurrence
from stepnet.model.stored.fields import Object, count, keyed, mapping, number, several, text
from stepnet.model.stored.nets import precision_data, precision_of


def report_data(report: Quantization | None) -> Object | None:
    """Converts the report of `stepnet.quantize` to JSON for a file; None for a model that it did not make."""
    if report is None:
        return None
    recurrences = [
        {
            "number": row.number,
            "what": row.what,
            "dtype": row.dtype,
            "precision": precision_data(row.precision),
            "alone": dict(row.alone),
            "reasons": dict(row.reasons),
        }
        for row in report.recurrences
    ]
    outputs = [[row.name, row.largest, row.rms, row.scale] for row in report.outputs]
    numbers = {"samples": report.samples, "steps": report.steps, "within": report.within}
    return {"recurrences": recurrences, "outputs": outputs, **numbers}


def report_of(data: Any) -> Quantization | None:
    """Reads the report of `stepnet.quantize` from JSON that `report_data` wrote; None for None. Raises
    `ModelError` for other data.
    """
    if data is None:
        return None
    given = keyed(data, "a report", "recurrences", "outputs", "samples", "steps", "within")
    return Quantization(
        several(recurrence_of, given["recurrences"], "a recurrence of a report"),
        several(output_of, given["outputs"], "an output of a report"),
        count(given["samples"], "the samples of a report"),
        count(given["steps"], "the steps of a report"),
        float(number(given["within"], "the bound of a report")),
    )


def recurrence_of(data: Any, what: str) -> QuantizedRecurrence:
    """Reads the choice for a recurrence in a report of quantization from JSON. what: its name."""
    given = keyed(data, what, "number", "what", "dtype", "precision", "alone", "reasons")
    alone, reasons = (mapping(given[part], f"{part} of {what}") for part in ("alone", "reasons"))
    return QuantizedRecurrence(
        count(given["number"], what),
        text(given["what"], what),
        text(given["dtype"], what),
        precision_of(given["precision"], what),
        {name: float(number(error, what)) for name, error in alone.items()},
        {name: text(reason, what) for name, reason in reasons.items()},
    )


def output_of(data: Any, what: str) -> OutputError:
    """Reads the error of one output in a report of quantization from JSON, [name, three numbers]; raises
    `ModelError` for other data. what: its name in messages.
    """
    name, *numbers = several(lambda item, _: item, data, what) or (None,)
    if len(numbers) != 3:
        raise ModelError(f"{what} has a name and three numbers")
    return OutputError(text(name, what), *(float(number(item, what)) for item in numbers))
