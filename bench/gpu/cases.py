"""The kernels that are timed and checked: steps, each with its schedules.

A schedule is a word: an exchange with its blocks, then numbers, chains, parts, ahead, functions or what is
left out, as in cluster8.parts4.bfloat16.ahead2. The numbers * stand for each of float32, tf32 and bfloat16.
"""

from bench.gpu.shape import Schedule

NUMBERS = ("float32", "tf32", "bfloat16")
KINDS = {"fast": "functions", "barrier": "without", "products": "without"}
"""The fields of a schedule that words other than numbers are for."""
TIMED = {
    "gru-64": """
        block1.parts2.ahead2.* block1.parts4.ahead2.* cluster4.parts4.ahead2.* tagged4.parts4.ahead2.*
        block1 block1.chains1 grid4 block1.parts4 cluster4.parts4 cluster4.parts4.ahead4
        block1.parts4.fast.ahead2 block1.parts4.bfloat16.fast.ahead2 cluster4.parts4.fast.ahead2
        block1.parts4.ahead2.products block1.parts4.fast.ahead2.products
    """,
    "gru-128": """
        cluster4.parts4.ahead2.* cluster8.parts4.ahead2.* tagged8.parts4.ahead2.* block1 block1.tf32
        block1.bfloat16 block1.chains1 block1.parts2 cluster8 cluster8.parts2 cluster8.parts4 tagged8
        tagged8.parts4 grid8 grid8.parts4 grid8.parts4.ahead2 cluster8.parts4.chains1.ahead2
        cluster8.parts4.fast.ahead2 cluster8.parts4.bfloat16.fast.ahead2 tagged8.parts4.fast.ahead2
        block1.products block1.barrier cluster8.parts4.ahead2.products cluster8.parts4.fast.ahead2.products
        tagged8.parts4.ahead2.products grid8.parts4.ahead2.products grid8.parts4.ahead2.barrier
    """,
    "gru-256": """
        cluster8.parts4.ahead2.* cluster16.parts4.ahead2.* tagged16.parts4.ahead2.* cluster8 grid8
        grid16.parts4.ahead2 cluster16.parts4 cluster16.parts4.fast.ahead2 tagged16.parts4.fast.ahead2
        cluster16.parts4.bfloat16.fast.ahead2 tagged8.parts4.bfloat16.ahead2
        cluster16.parts4.ahead2.products tagged16.parts4.ahead2.products
    """,
    "gru-512": """
        tagged32.parts4.ahead2.* cluster16.parts4.bfloat16.ahead2 tagged16.parts4.bfloat16.ahead2 grid32
        grid32.parts4.ahead2 tagged32.parts4 tagged32.parts4.fast.ahead2
        tagged32.parts4.bfloat16.fast.ahead2 tagged32.parts4.ahead2.products
    """,
    "gru-1024": """
        tagged64.parts4.bfloat16.ahead2 tagged64.parts4.tf32.ahead2 tagged64.parts4.bfloat16.fast.ahead2
        grid64.parts4.bfloat16.ahead2
    """,
    "lstm-64": """
        block1.parts4.ahead2.* cluster4.parts4.ahead2.* block1 block1.parts4.fast.ahead2
        block1.parts4.bfloat16.fast.ahead2
    """,
    "lstm-128": """
        cluster8.parts4.ahead2.* tagged8.parts4.ahead2.* block1 cluster8.parts4.fast.ahead2
        cluster8.parts4.bfloat16.fast.ahead2
    """,
    "lstm-256": """
        cluster16.parts4.ahead2.* tagged16.parts4.ahead2.* cluster8.parts4.bfloat16.ahead2
        cluster16.parts4.fast.ahead2 cluster16.parts4.bfloat16.fast.ahead2
    """,
    "lstm-512": """
        tagged32.parts4.ahead2.* tagged16.parts4.bfloat16.ahead2 tagged32.parts4.fast.ahead2
        tagged32.parts4.bfloat16.fast.ahead2 grid32.parts4.ahead2
    """,
    "lstm-768": "tagged48.parts4.bfloat16.ahead2 tagged48.parts4.bfloat16.fast.ahead2",
    "lstm-1024": "tagged64.parts4.bfloat16.ahead2 tagged64.parts4.bfloat16.fast.ahead2",
    "minimal_gated_unit-64": "block1.parts4.ahead2.* block1 block1.parts4.fast.ahead2",
    "minimal_gated_unit-128": "cluster8.parts4.ahead2.* block1.parts2.ahead2 tagged8.parts4.ahead2",
    "minimal_gated_unit-256": """
        cluster16.parts4.ahead2.* tagged16.parts4.ahead2.* cluster16.parts4.fast.ahead2
    """,
    "minimal_gated_unit-512": "tagged32.parts4.ahead2.* tagged32.parts4.fast.ahead2",
    "rg_lru-256": "grid4 grid4.ahead2 grid4.ahead4 grid4.ahead8 grid4.ahead16 grid4.ahead32",
    "rg_lru-1024": "grid16 grid16.ahead4 grid16.ahead16",
    "backward gru-128": "cluster8.parts4.ahead2 cluster8.parts4.bfloat16.ahead2 tagged8.parts4.ahead2",
    "backward lstm-128": "cluster8.parts4.ahead2 cluster8.parts4.bfloat16.ahead2",
    "backward gru-256": "cluster16.parts4.ahead2 cluster16.parts4.bfloat16.ahead2 tagged16.parts4.ahead2",
}
"""The schedules that are timed."""
CHECKED = {
    "simple_rnn-16": "block1.chains1 block1.chains1.parts2",
    "simple_rnn-64": """
        block1.chains1 block1 cluster2 cluster4 grid2 grid4 tagged4 block1.parts4 cluster4.parts4
    """,
    "gru-32": """
        block1.barrier block1.chains1 block1 cluster2 grid2 tagged2 block1.bfloat16 block1.parts4
        cluster2.bfloat16
    """,
    "gru-64": """
        block1.chains1 block1 cluster2 cluster4 grid2 grid4 tagged4 block1.tf32 block1.bfloat16
        cluster4.bfloat16 block1.parts4 cluster4.parts4 tagged4.parts4 grid4.parts4 cluster4.parts4.ahead2
        block1.parts4.fast block1.parts4.bfloat16
    """,
    "gru-128": """
        block1 cluster8 grid8 tagged8 block1.parts2 cluster8.parts2 cluster8.parts4 tagged8.parts4
        grid8.parts4
    """,
    "gru-256": "cluster8 cluster16 grid8 grid16 cluster16.parts4 tagged16.parts4 grid16.parts4",
    "lstm-64": "block1 cluster2 cluster4 grid2 grid4 tagged2 block1.bfloat16 block1.parts4 cluster4.parts4",
    "minimal_gated_unit-32": "block1 cluster2 grid2 tagged2 block1.parts4",
    "minimal_gated_unit-64": """
        block1 cluster4 grid4 tagged4 block1.parts4 cluster4.parts4 tagged4.parts4 block1.barrier
        grid4.barrier
    """,
    "rg_lru-32": "block1 block1.ahead4",
    "backward gru-32": "block1 cluster2 grid2 tagged2 block1.parts4",
    "backward lstm-32": "block1 cluster2 grid2 tagged2 block1.parts4",
    "backward gru-128": "cluster4 cluster8 grid8 tagged8 cluster8.parts4 tagged8.parts4",
}
"""The schedules that are checked."""


def schedules(text: str) -> list[Schedule]:
    """Returns the schedules of a text of words."""
    words = (word.replace("*", numbers) for word in text.split() for numbers in NUMBERS)
    return [schedule(word) for word in dict.fromkeys(words)]


def schedule(word: str) -> Schedule:
    """Returns the schedule of one word. Unless it says so, the terms of float32 have a chain each."""
    first, *others = word.split(".")
    exchange = first.rstrip("0123456789")
    options: dict[str, str] = {"numbers": "float32"}
    counts = {"blocks": int(first[len(exchange) :])}
    for other in others:
        name = other.rstrip("0123456789")
        if name in ("chains", "parts", "ahead"):
            counts[name] = int(other[len(name) :])
        else:
            options[KINDS.get(other, "numbers")] = other
    counts.setdefault("chains", 3 if options["numbers"] == "float32" else 1)
    return Schedule(exchange=exchange, **options, **counts)  # pyright: ignore[reportArgumentType]
