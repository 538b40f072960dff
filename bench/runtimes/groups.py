"""The table of cases: each group has rows of cases and the peers that they are timed beside.

group -> cases and peers        `python -m bench --group streaming`
preset -> groups                `python -m bench --preset wide`
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.runtimes.cases import Case
from stepnet.errors import InputError

LIBRARIES = ("torch", "onnxruntime", "openvino", "onednn", "tensorflow", "tensorflow xla", "jax", "paddle")
OF_LENGTHS = ("torch", "torch packed", *LIBRARIES[1:])
LOOPS = ("torch loop", "torch.compile", "jax")
TRAINERS = ("torch", "onednn", "tensorflow", "tensorflow xla", "jax", "paddle")
STREAMERS = ("torch", "onnxruntime", "onnxruntime bound", "openvino", "tensorflow", "jax", "paddle")
GPUS = (
    *("torch", "torch packed", "torch loop", "torch graph", "torch.compile"),
    *("cudnn standard", "cudnn persistent", "cudnn dynamic", "cudnn small", "flashrnn", "fla", "mamba_ssm"),
)
MARKED = ("torch", "torch packed", "prototype")
BATCHES, WIDTHS = (1, 2, 4, 8, 16, 64, 256), (32, 64, 128, 256, 512, 1024)
SMALL_BATCHES, SMALL_WIDTHS = (1, 2, 4, 8), (32, 64, 128)
TARGET_SIZES = ((1, 64), (1, 256), (1, 512), (1, 1024), (16, 256), (64, 256), (64, 512), (64, 1024))


@dataclass(frozen=True)
class Group:
    """Cases that are timed beside the same peers, and read as one table."""

    name: str
    title: str
    peers: tuple[str, ...]
    cases: tuple[Case, ...]


def grid(
    cells: Sequence[str],
    batches: Iterable[int],
    hiddens: Iterable[int],
    lengths: Iterable[str] = ("dense",),
    time: int = 100,
    dtype: str = "float32",
    mode: str = "forward",
    device: str = "cpu",
) -> list[Case]:
    """Returns every combination as a case, but no ragged batch of one; inputs are as wide as the memory.

    >>> [str(case) for case in grid(["gru"], [1, 2], [8], ["dense", "ragged"])]
    ['gru 1x8 dense', 'gru 2x8 dense', 'gru 2x8 ragged']
    """
    hiddens, lengths = list(hiddens), list(lengths)
    return [
        Case(cell, batch, time, hidden, hidden, kind, dtype, mode, device=device)
        for cell in cells
        for batch in batches
        for hidden in hiddens
        for kind in lengths
        if batch > 1 or kind == "dense"
    ]


def sized(cell: str, *sizes: tuple[int, int], time: int = 100, **fields: object) -> list[Case]:
    """Returns cases of a cell at some sizes, batch by hidden, with inputs as wide as the memory.

    fields: further fields of the cases.
    """
    return [
        Case(cell, batch, time, hidden, hidden, **fields)  # pyright: ignore[reportArgumentType]
        for batch, hidden in sizes
    ]


def vowels_case(hidden: int = 256, mode: str = "forward", cell: str = "gru", directions: int = 1) -> Case:
    """Returns the case of the demo's batch: all 640 utterances of Japanese Vowels, of 7 to 29 frames."""
    return Case(cell, 640, 29, 12, hidden, "vowels", mode=mode, directions=directions)


def both(*sizes: tuple[int, int], time: int = 100, **fields: object) -> list[Case]:
    """Returns cases of a GRU and an LSTM at some sizes, batch by hidden; fields: further fields."""
    return [case for cell in ("gru", "lstm") for case in sized(cell, *sizes, time=time, **fields)]


def on_gpu(time: int = 1024) -> list[Case]:
    """Returns the cases that are run on a GPU, those first that say most."""

    def there(cell: str, *sizes: tuple[int, int], **fields: object) -> list[Case]:
        """Returns cases of a cell at some sizes, batch by hidden; fields: further fields."""
        return sized(cell, *sizes, time=time, device="cuda", **fields)

    return [
        *(case for cell in ("gru", "lstm", "minimal", "layernorm_lstm") for case in there(cell, (16, 256))),
        *there("gru", (64, 256), (16, 64), (16, 512), (16, 1024)),
        *there("lstm", (64, 256), (16, 64), (16, 512), (16, 1024)),
        *there("gru", (16, 256), mode="training"),
        *there("minimal", (64, 256), (16, 512), (16, 64)),
        *(case for cell in ("gru", "lstm") for case in there(cell, (64, 256), lengths="ragged")),
        *there("gru", (16, 256), directions=2),
        *there("diagonal", (16, 256), (16, 1024)),
        *there("mlstm", (16, 256)),
        *there("lstm", (16, 256), mode="training"),
        *there("minimal", (16, 256), mode="training"),
        *there("layernorm_lstm", (64, 256), (16, 64), (16, 512)),
        *there("gru", (1, 256), (64, 64), (64, 512), (64, 1024)),
        *there("lstm", (1, 256), (64, 64), (64, 512), (64, 1024)),
    ]


def table() -> tuple[Group, ...]:
    """Returns all groups of cases."""
    few, three = ((1, 64), (16, 256)), ((1, 64), (1, 256), (16, 256), (64, 256))
    return tuple(
        Group(name, title, peers, tuple(cases))
        for name, title, peers, cases in (
            ("targets", "Promised sizes", MARKED, [*sized("gru", *TARGET_SIZES), vowels_case()]),
            ("gru", "GRU", LIBRARIES, grid(["gru"], BATCHES, WIDTHS)),
            ("lstm", "LSTM", LIBRARIES, grid(["lstm"], BATCHES, WIDTHS)),
            (
                "ragged",
                "Sequences of many lengths",
                OF_LENGTHS,
                [
                    *both((16, 64), (64, 64), (64, 256), time=500, lengths="log-normal"),
                    *(vowels_case(hidden, cell=cell) for cell in ("gru", "lstm") for hidden in (64, 256)),
                ],
            ),
            (
                "bidirectional",
                "Both directions",
                ("one thread", *OF_LENGTHS),
                [
                    *both((1, 64), (1, 256), (16, 64), (16, 256), directions=2),
                    *sized("gru", (1, 512), directions=2),
                    *both((16, 128), time=500, lengths="log-normal", directions=2),
                ],
            ),
            (
                "layers",
                "Layers",
                ("one thread", *LIBRARIES),
                [case for count in (2, 3, 4) for case in both(*few, layers=count)]
                + sized("gru", (1, 512), layers=2)
                + sized("lstm", (16, 128), layers=2, directions=2),
            ),
            (
                "streaming",
                "One step at a time",
                STREAMERS,
                both((1, 64), (1, 128), (1, 256), (1, 512), (16, 256), mode="stream"),
            ),
            (
                "training",
                "Training",
                TRAINERS,
                [
                    *both((1, 64), (1, 256), (4, 128), (16, 64), (16, 256), (64, 256), mode="training"),
                    *both((16, 128), layers=2, mode="training"),
                ],
            ),
            (
                "training ragged",
                "Training over many lengths",
                ("torch", "torch packed", *TRAINERS[1:]),
                [
                    vowels_case(256, "training"),
                    *both((16, 128), time=200, lengths="log-normal", mode="training"),
                ],
            ),
            (
                "training custom",
                "Training of custom cells",
                LOOPS,
                [
                    case
                    for cell in ("custom", "minimal", "layernorm_lstm")
                    for case in sized(cell, (1, 64), (16, 256), mode="training")
                ],
            ),
            (
                "custom",
                "Custom cells",
                LOOPS,
                [
                    case
                    for cell in ("custom", "minimal", "gru_before", "layernorm_lstm", "mlstm", "diagonal")
                    for case in sized(cell, *three)
                ],
            ),
            (
                "long",
                "Long sequences",
                LIBRARIES,
                [
                    *both((1, 64), (1, 256), (4, 128), time=10_000),
                    *sized("gru", (1, 64), time=100_000),
                ],
            ),
            ("long custom", "Long sequences of custom cells", LOOPS, [
                *sized("diagonal", (1, 256), time=10_000), *sized("mlstm", (1, 128), time=10_000),
                *sized("custom", (1, 64), time=10_000),
            ]),
            (
                "start",
                "From the start of a process to its first result",
                ("torch", "onnxruntime", "openvino", "tensorflow", "jax", "paddle"),
                [*both((2, 64), time=20, mode="start"), *sized("gru", (2, 64), time=20, mode="cold start")],
            ),
            (
                "stolen",
                "While another process takes a processor",
                ("one thread", "torch", "onnxruntime", "openvino", "jax"),
                [
                    *both((1, 256), (1, 512), (16, 256), busy=1),
                    *sized("gru", (1, 1024), busy=1),
                ],
            ),
            ("gpu", "On a GPU", GPUS, on_gpu()),
        )
    )  # fmt: skip


GROUPS = {group.name: group for group in table()}


@dataclass(frozen=True)
class Preset:
    """Groups that are named together, and the batches and widths of their cases that are run; () for all."""

    groups: tuple[str, ...]
    batches: tuple[int, ...] = ()
    hiddens: tuple[int, ...] = ()


PRESETS = {
    "targets": Preset(("targets",)),
    "small": Preset(("gru", "lstm"), SMALL_BATCHES, SMALL_WIDTHS),
    "wide": Preset(tuple(name for name in GROUPS if name not in ("targets", "gpu"))),
}


def group_of(name: str) -> Group:
    """Returns the group of cases of this name; raises `InputError` if there is none."""
    if name not in GROUPS:
        raise InputError(f"no group is called {name!r}; there are {', '.join(GROUPS)}")
    return GROUPS[name]


def chosen_cases(
    group: Group, cells: Sequence[str] = (), batches: Sequence[int] = (), hiddens: Sequence[int] = ()
) -> list[Case]:
    """Returns the cases of a group that have one of these cells, batches and widths; all for empty ones.

    >>> [str(case) for case in chosen_cases(GROUPS["gru"], batches=[2], hiddens=[32, 64])]
    ['gru 2x32 dense', 'gru 2x64 dense']
    """
    return [
        case
        for case in group.cases
        if (not cells or case.cell in cells)
        and (not batches or case.batch in batches)
        and (not hiddens or case.hidden in hiddens)
    ]
