"""The sizes of the buffers and tables in the scratch memory of machine code."""

from collections.abc import Mapping

from stepnet.compiler.native.call_words import LANE_TABLES, ROW_TABLES, STEP_TABLES

LINE = 64
CLAIM_BYTES = 2 * LINE
"""The bytes of the words by which the work of a thread is claimed (`emit/claims.py`), and of the gap ahead of
the first ones: processors fetch lines in pairs."""
SLACK = 16
"""The rows, or lanes, that buffers and tables have beyond those of a call: tiles reach past the last one."""


def part_sizes(strides: Mapping[str, int], lanes: int, rows: int, steps: int) -> dict[str, int]:
    """Returns the sizes in bytes of the buffers and tables of a workspace (scratch memory), in whole cache
    lines, by the name of the argument of the machine code that points to each.

    strides: the bytes of each kind of record (the values of one row).
    lanes: the largest number of lanes (slots that run sequences).
    rows, steps: the largest numbers of rows and steps of a block.
    """
    slots, rows = lanes + SLACK, rows + SLACK
    sizes = {
        "now": slots * strides["now"],
        "next": slots * strides["now"],
        "lane": slots * strides["lane"],
        "block": rows * strides["block"],
        "nowhere": strides["nowhere"],
        "claims": 2 * CLAIM_BYTES,
    }
    sizes |= dict.fromkeys(LANE_TABLES, 8 * slots)
    sizes |= dict.fromkeys(ROW_TABLES, 8 * rows)
    sizes |= dict.fromkeys(STEP_TABLES, 8 * (steps + 1))  # the entry after the last step is read too
    sizes |= dict.fromkeys(("barrier", "status", "progress"), LINE)
    return {name: whole_lines(size) for name, size in sizes.items()}


def whole_lines(size: int) -> int:
    """Rounds a number of bytes up to whole cache lines, so that no two arrays share one."""
    return -(-size // LINE) * LINE
