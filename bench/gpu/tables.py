"""The tables of docs/design/gpu.md, from saved results: what was measured, beside what was expected."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench.gpu.predictions import PREDICTIONS, Prediction

SAVED = Path(__file__).parents[1] / "saved" / "gpu-h100.json"
BATCHES = ("1", "16", "64")
NUMBERS = ("float32", "tf32", "bfloat16")
PEERS = {"float32": ("float32",), "tf32": ("float32, TF32 allowed",), "bfloat16": ("bfloat16", "float16")}
"""The modules of PyTorch that stand beside kernels of some numbers."""
Rows = dict[str, Any]
NAN = float("nan")


def rows_of(result: dict[str, Any], *stages: str) -> Rows:
    """Returns the rows of some stages, without the facts about the device."""
    found = Rows()
    for stage in stages:
        found |= result["stages"][stage]["rows"]
    return {name: row for name, row in found.items() if name != "device"}


def markdown(headings: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Returns a table in Markdown."""
    first = [*headings]
    written = [first, ["---"] + ["---:"] * (len(first) - 1), *map(list, lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in written)


def us(nanoseconds: float) -> str:
    """Returns nanoseconds as a text of microseconds."""
    return f"{nanoseconds / 1e3:.2f}"


def exchange_rows(result: dict[str, Any]) -> str:
    """Returns the table of barriers and exchanges by the number of blocks."""
    rows = rows_of(result, "exchanges")
    names = {
        "barrier cooperative_groups, 128 threads": "barrier of cooperative groups",
        "barrier flip, 128 threads": "barrier that flips a bit",
        "barrier counter, 128 threads": "barrier by a counter",
        "barrier flags, 128 threads": "barrier by a flag per block",
        "exchange counter, 16 words": "16 numbers per block, by a counter",
        "exchange tagged, 16 words": "16 numbers per block, tagged",
        "exchange counter, 128 words": "128 numbers per block, by a counter",
        "exchange tagged, 128 words": "128 numbers per block, tagged",
    }
    blocks = ("2", "4", "8", "16", "32", "64", "128")
    lines = ([title, *(us(rows[name][each]) for each in blocks)] for name, title in names.items())
    return markdown(["microseconds, by blocks", *blocks], lines)


def cluster_rows(result: dict[str, Any]) -> str:
    """Returns the table of exchanges in clusters, of blocks of 128 threads, one cluster on the GPU."""
    rows = rows_of(result, "exchanges")
    titles = {
        "barrier": "barrier alone",
        "store": "stores of 16 bytes, then the barrier",
        "arrive": "stores of 16 bytes, then each warp arrives in each block",
        "copy": "copies by the asynchronous unit, counted",
        "push": "`st.async` of 8 bytes, counted",
    }
    sizes = ("2", "4", "8", "16")
    lines = [
        [f"{title}, {threads} threads"]
        + [
            us(rows[f"cluster {name}, {size} blocks"][f"1 x {size} blocks of {threads} threads"])
            for size in sizes
        ]
        for name, title in titles.items()
        for threads in (32, 128)
    ]
    most = ["clusters at once on the GPU", *(str(rows[f"clusters of {size} at once"]) for size in sizes)]
    return markdown(["microseconds, by blocks of the cluster", *sizes], [*lines, most])


def arithmetic_rows(result: dict[str, Any]) -> str:
    """Returns the table of products of one multiprocessor."""
    rows = rows_of(result, "arithmetic")
    titles = {
        "tf32_1": "`mma.sync` m16n8k8 tf32, one sum",
        "tf32_8": "`mma.sync` m16n8k8 tf32, eight sums",
        "bf16_1": "`mma.sync` m16n8k16 bfloat16, one sum",
        "bf16_8": "`mma.sync` m16n8k16 bfloat16, eight sums",
        "warpgroup_tf32_4": "`wgmma` m64n8k8 tf32, four sums",
        "warpgroup_bf16_4": "`wgmma` m64n8k16 bfloat16, four sums",
        "wide_tf32_1": "`wgmma` m64n64k8 tf32",
        "wide_bf16_1": "`wgmma` m64n64k16 bfloat16",
    }
    warps = ("1", "4", "8", "16")

    def cell(name: str, count: str) -> str:
        """Returns the rate, and for one sum the cycles."""
        row = rows.get(f"{name}, {count} warps")
        if row is None:
            return ""
        latency = (
            f", {row['cycles']:.0f} cycles" if name.endswith("_1") and not name.startswith("wide") else ""
        )
        return f"{row['flops_per_cycle']:.0f}{latency}"

    lines = ([title, *(cell(name, count) for count in warps)] for name, title in titles.items())
    return markdown(["operations in a cycle, by warps", *warps], lines)


def other_rows(result: dict[str, Any]) -> str:
    """Returns the table of what else was measured of the GPU: reads, launches, loading."""
    exchanges, arithmetic = rows_of(result, "exchanges"), rows_of(result, "arithmetic")
    loading, again = rows_of(result, "loading"), rows_of(result, "loading again")
    lines = [
        ["a word handed to another block (least, median, most)", *handoff_texts(exchanges["handoff"])],
        [
            "read past the first cache, in a chain",
            f"{arithmetic['latency of the second cache']['nanoseconds']:.0f} ns",
        ],
        [
            "shared memory, 8 warps",
            f"{arithmetic['shared memory, 8 warps']['bytes_per_cycle']:.0f} bytes in a cycle",
        ],
        [
            "barrier of a block of 8 warps",
            f"{arithmetic['barrier of a block, 8 warps']['cycles']:.0f} cycles",
        ],
        ["launch, one after another", f"{loading['launch after another, on the GPU']:.1f} us"],
        [
            "cooperative launch, one after another",
            f"{loading['cooperative launch after another, on the GPU']:.1f} us",
        ],
        ["launch and wait", f"{loading['launch and wait, on the host']:.1f} us"],
        ["copy of memory", f"{rows_of(result, 'products')['copy, bytes per second'] / 1e12:.2f} TB/s"],
    ]
    for name, milliseconds in loading.items():
        if name.endswith("ptx, ms"):
            text = f"{milliseconds:.0f} ms; again {again[name]:.1f} ms; as machine code "
            cubin = name.replace("ptx, ms", "cubin, ms")
            lines.append(
                [f"`{name.removesuffix('.ptx, ms')}`, loaded as PTX", f"{text}{loading[cubin]:.2f} ms"]
            )
    return markdown(["", "measured"], lines)


def handoff_texts(found: dict[str, float]) -> list[str]:
    """Returns the times of handing a word over, as one cell."""
    return [f"{found['least']:.0f}, {found['median']:.0f}, {found['most']:.0f} ns"]


def check_rows(result: dict[str, Any]) -> str:
    """Returns the table of the checks: of float32 kernels the largest difference, and the bits."""
    rows = rows_of(result, *(name for name in result["stages"] if name.startswith("checks")))
    kernels = {name: row for name, row in rows.items() if isinstance(row, dict) and not row["without"]}
    lines = list[list[str]]()
    for step in dict.fromkeys(row["step"] for row in kernels.values()):
        exact = {n: r for n, r in kernels.items() if r["step"] == step and r["numbers"] == "float32"}
        sums = {n.rsplit("-float32-", 1)[1].rsplit("-a", 1)[0] for n in exact if "fast" not in n}
        alike = all(
            len({r["bits"] for n, r in exact.items() if f"-float32-{each}-a" in n and "fast" not in n}) == 1
            for each in sums
        )
        lines.append(
            [
                step,
                str(len(exact)),
                f"{max(r['difference'] for r in exact.values()):.1e}",
                f"{next(iter(exact.values()))['tolerance']:.1e}",
                "yes" if alike else "no",
                "yes"
                if all(r["runs_with_the_same_bits"].startswith("20 of") for r in exact.values())
                else "no",
                "yes" if all(r["alone"] for r in exact.values()) else "no",
            ]
        )
    headings = [
        "step",
        "kernels",
        "largest difference",
        "allowed",
        "schedules alike",
        "20 runs alike",
        "alone alike",
    ]
    return markdown(headings, lines)


def kernels_of(result: dict[str, Any]) -> Rows:
    """Returns the times of all kernels that leave nothing out."""
    rows = rows_of(result, *(name for name in result["stages"] if name.startswith("steps")))
    return {name: row for name, row in rows.items() if "-no-" not in name}


def fastest(
    result: dict[str, Any], step: str, numbers: str, batch: str, fast: bool = True
) -> tuple[float, str]:
    """Returns the microseconds of the fastest kernel, and its schedule. fast: functions may be fast."""
    found = [
        (row["microseconds"][batch], row["schedule"])
        for row in kernels_of(result).values()
        if row["step"] == step
        and f"-{numbers}-" in row["schedule"]
        and isinstance(row["microseconds"][batch], float)
        and (fast or "fast" not in row["schedule"])
    ]
    return min(found, default=(float("nan"), "none"))


def step_rows(result: dict[str, Any], cell: str, widths: Iterable[int]) -> str:
    """Returns the table of the microseconds of a step of a cell, beside PyTorch's module."""
    modules = rows_of(result, "modules")
    lines = list[list[str]]()
    for width in widths:
        for numbers in NUMBERS:
            best = [fastest(result, f"{cell}-{width}", numbers, batch) for batch in BATCHES]
            if best[0][1] == "none":
                continue
            theirs = [modules.get(f"{cell} {width}, {peer}", {}) for peer in PEERS[numbers]]
            lines.append(
                [
                    f"{width}, {numbers}",
                    *(f"{time:.2f}" if time == time else "" for time, _ in best),
                    f"`{best[1][1]}`",
                    *(" / ".join(f"{row[batch]:.1f}" for row in theirs if batch in row) for batch in BATCHES),
                ]
            )
    headings = ["units, numbers", *BATCHES, "schedule of 16", *(f"cuDNN, {batch}" for batch in BATCHES)]
    return markdown(headings, lines)


def large_rows(result: dict[str, Any]) -> str:
    """Returns the table of large batches, beside PyTorch's GRU."""
    batches = ("64", "128", "256", "512", "1024")
    ours = {f"`{name}`": row["microseconds"] for name, row in rows_of(result, "large batches").items()}
    theirs = {f"cuDNN, {name}": row for name, row in rows_of(result, "modules, large batches").items()}
    lines = ([name, *(f"{row[batch]:.1f}" for batch in batches)] for name, row in {**ours, **theirs}.items())
    return markdown(["microseconds of a step, by sequences", *batches], lines)


def part_rows(result: dict[str, Any]) -> str:
    """Returns the table of kernels that leave a part of a step out, beside the whole ones."""
    rows = rows_of(result, *(name for name in result["stages"] if name.startswith("steps")))
    lines = [
        [
            f"`{name.split('-no-')[0]}`",
            name.split("-no-")[1],
            *(f"{rows[n]['microseconds']['16']:.2f}" for n in both),
        ]
        for name in rows
        if "-no-" in name
        for both in [(name.split("-no-")[0], name)]
        if both[0] in rows
    ]
    return markdown(["kernel, 16 sequences", "left out", "whole, us", "without, us"], lines)


def schedule_rows(result: dict[str, Any], step: str) -> str:
    """Returns the table of all schedules of a step."""
    rows = {name: row for name, row in kernels_of(result).items() if row["step"] == step}
    lines = (
        [
            f"`{row['schedule']}`",
            str(row["threads"]),
            row["resident"],
            *(time(row, batch) for batch in BATCHES),
            f"{row['difference']:.1e}",
        ]
        for row in rows.values()
    )
    headings = [
        "schedule",
        "threads",
        "operands in registers",
        *(f"{batch}, us" for batch in BATCHES),
        "difference",
    ]
    return markdown(headings, lines)


def time(row: dict[str, Any], batch: str) -> str:
    """Returns the microseconds of a batch, or that the driver refused it."""
    found = row["microseconds"][batch]
    return f"{found:.2f}" if isinstance(found, float) else "refused"


def loop_rows(result: dict[str, Any]) -> str:
    """Returns the table of loops in PyTorch."""
    loops, compiled = rows_of(result, "loops"), rows_of(result, "compiled")
    lines = [
        [
            name,
            f"{row['loop']:.0f}",
            f"{compiled[name]['loop']:.0f}" if name in compiled else "",
            f"{row['graph']:.1f}",
        ]
        for name, row in loops.items()
    ]
    return markdown(["microseconds of a step", "loop", "compiled step", "loop as a graph"], lines)


def expected_range(each: Prediction) -> str:
    """Returns the range of a prediction as text."""
    return (
        f"{each.least:g} {each.unit}"
        if each.least == each.most
        else f"{each.least:g} to {each.most:g} {each.unit}"
    )


def extent(values: Iterable[float]) -> str:
    """Returns the least and the largest of some numbers as text."""
    found = sorted(value for value in values if value == value)
    return f"{found[0]:.2f} to {found[-1]:.2f}" if found[0] != found[-1] else f"{found[0]:.2f}"


def measured_texts(result: dict[str, Any]) -> dict[str, str]:
    """Returns what was measured for each prediction, by what it is about; steps are those of 16 sequences."""
    exchanges, arithmetic = rows_of(result, "exchanges"), rows_of(result, "arithmetic")
    modules, loading = rows_of(result, "modules"), rows_of(result, "loading")
    kernels = kernels_of(result)

    def barrier(name: str) -> str:
        """Returns the microseconds of a barrier of 132 blocks."""
        return us(exchanges[f"barrier {name}, 128 threads"]["132"])

    def cluster(name: str, *sizes: int) -> str:
        """Returns the microseconds of an exchange in clusters, of blocks of 32 threads."""
        rows = (
            exchanges[f"cluster {name}, {size} blocks"][f"1 x {size} blocks of 32 threads"] for size in sizes
        )
        return extent(nanoseconds / 1e3 for nanoseconds in rows)

    def steps(*exchange: str) -> str:
        """Returns the extent of the fastest kernels of steps with products, with an exchange."""
        names = {
            row["step"] for row in kernels.values() if not row["step"].startswith(("backward", "rg_lru"))
        }
        best = [
            min(
                (of_16(row) for row in kernels.values() if row["step"] == name and is_of(row, exchange)),
                default=NAN,
            )
            for name in names
        ]
        return extent(best)

    def alone(ahead: str) -> str:
        """Returns the time of units that are alone."""
        return extent(
            of_16(row) for name, row in kernels.items() if name.startswith("rg_lru") and name.endswith(ahead)
        )

    def kernel(name: str) -> str:
        """Returns the time of one kernel."""
        return f"{of_16(kernels[name]):.2f}"

    rate = arithmetic["tf32_8, 16 warps"]["flops_per_cycle"]
    beside = rate / arithmetic["warpgroup_tf32_4, 16 warps"]["flops_per_cycle"]
    cudnn = [row["16"] for name, row in modules.items() if name not in ("versions", "lstm 768, float16")]
    graphs = (row["graph"] for row in rows_of(result, "loops").values())
    compiled = loading["gru-512-grid32-float32-p1-c3-a1.ptx, ms"] / 1e3
    return {
        "barrier of a grid of 132 blocks, cooperative groups": barrier("cooperative_groups"),
        "barrier of a grid of 132 blocks, a counter": barrier("counter"),
        "a word handed to another block through the second cache": us(exchanges["handoff"]["median"]),
        "barrier of a cluster of 2": cluster("barrier", 2),
        "push to the blocks of a cluster of 2 to 16, and wait": cluster("push", 2, 16),
        "push to the blocks of a cluster of 16, and wait": cluster("push", 16),
        "read from the second cache": f"{arithmetic['latency of the second cache']['nanoseconds']:.0f}",
        "launch, one after another": f"{loading['launch after another, on the GPU']:.1f}",
        "rate of mma.sync beside wgmma, at 8 columns": f"{beside:.1f}",
        "step on one block": steps("block"),
        "step in a cluster": steps("cluster"),
        "step on a grid": steps("grid", "tagged"),
        "step of units that are alone": alone("a16"),
        "step of units that are alone, read one step ahead": alone("a1"),
        "GRU 64 on one block, float32": kernel("gru-64-block1-float32-p1-c3-a1"),
        "GRU 128 on one block, float32": kernel("gru-128-block1-float32-p1-c3-a1"),
        "GRU 128 in a cluster of 8, float32": kernel("gru-128-cluster8-float32-p1-c3-a1"),
        "GRU 128 in a cluster of 8, bfloat16": kernel("gru-128-cluster8-bfloat16-p4-c1-a2"),
        "GRU 256 in a cluster of 16, float32": kernel("gru-256-cluster16-float32-p4-c3-a2"),
        "GRU 256 on a grid of 16 blocks, float32": kernel("gru-256-grid16-float32-p4-c3-a2"),
        "cuDNN, LSTM of 768 units, 16 sequences, float16": f"{modules['lstm 768, float16']['16']:.2f}",
        "cuDNN, known cell, plain batch": extent(cudnn),
        "a graph of products and elementwise kernels": extent(graphs),
        "driver compiles the PTX of a kernel of 512 units": f"{compiled:.1f}",
    }


def of_16(row: dict[str, Any]) -> float:
    """Returns the microseconds of a step of 16 sequences; NaN if the driver refused them."""
    found = row["microseconds"]["16"]
    return found if isinstance(found, float) else NAN


def is_of(row: dict[str, Any], exchanges: tuple[str, ...]) -> bool:
    """Tells whether a kernel has one of these exchanges, with exact functions."""
    return row["schedule"].startswith(exchanges) and "fast" not in row["schedule"]


def prediction_rows(result: dict[str, Any]) -> str:
    """Returns the table of what was expected, beside what was measured."""
    found = measured_texts(result)
    lines = ([p.what, expected_range(p), p.source, found[p.what]] for p in PREDICTIONS)
    return markdown(["", "expected", "by", "measured"], lines)


def tables(result: dict[str, Any]) -> dict[str, Callable[[], str]]:
    """Returns all tables by name, each as a function that writes it."""
    return {
        "predictions": lambda: prediction_rows(result),
        "checks": lambda: check_rows(result),
        "exchanges": lambda: exchange_rows(result),
        "clusters": lambda: cluster_rows(result),
        "arithmetic": lambda: arithmetic_rows(result),
        "other": lambda: other_rows(result),
        "gru": lambda: step_rows(result, "gru", (64, 128, 256, 512, 1024)),
        "lstm": lambda: step_rows(result, "lstm", (64, 128, 256, 512, 768, 1024)),
        "minimal_gated_unit": lambda: step_rows(result, "minimal_gated_unit", (64, 128, 256, 512)),
        "large": lambda: large_rows(result),
        "parts": lambda: part_rows(result),
        "schedules": lambda: schedule_rows(result, "gru-128"),
        "loops": lambda: loop_rows(result),
    }


def saved(path: Path = SAVED) -> dict[str, Any]:
    """Returns the saved results."""
    return json.loads(path.read_text())
