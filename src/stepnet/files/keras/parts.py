"""What of a Keras layer has arrays of its own, such as a cell, in all that may be around it.

    Bidirectional(RNN([LSTMCell, GRUCell]))     forward_layer/cell/cells/lstm_cell  ->  forward/cells/0
                                                forward_layer/cell/cells/gru_cell   ->  forward/cells/1
                                                backward_layer/cell/cells/...       ->  backward/cells/...

A configuration is a tree of objects, and the groups of a file are a tree with the same branches: an object
has what it holds under the name of an attribute. Both are walked together. Where the configuration of a layer
does not say what it holds, as one of the program's own class need not, the names of groups do.

Sources: keras/src/layers/rnn/ and saving/saving_lib.py of 3.15; tf_keras 2.21.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stepnet.errors import FileError
from stepnet.files.keras.config import DEEPEST, TIMED, Config, class_of, numbered, rows, snake, table
from stepnet.files.store import OBJECT, Store

Steps = tuple[str, ...]

LAYERS = {
    "SimpleRNN": "rnn",
    "GRU": "gru",
    "LSTM": "lstm",
    "CuDNNGRU": "cudnn_gru",
    "CuDNNLSTM": "cudnn_lstm",
}
CELLS = {**LAYERS, "SimpleRNNCell": "rnn", "GRUCell": "gru", "LSTMCell": "lstm"}
DIRECTIONS = {"forward_layer": "forward", "backward_layer": "backward"}
UNSAID = ("cell", "layer", "layers")  # groups that no part is named after
MOST_SHOWN = 4
CELL = re.compile(r"\w*_cell(_\d+)?")  # what Keras calls a cell in the names of weights
STACK = re.compile(r"stacked_rnn_cells(_\d+)?")


@dataclass(frozen=True)
class Part:
    """Something in a layer that has arrays of its own.

    words: the way to it, ("forward", "cells", "1"), nothing for the layer itself. class_name: "" where
    nothing tells it. run: the configuration of what runs it over the steps, which is its own for a layer.
    names: what it and what is around it are called. in_cell: whether something runs it as its cell. merge:
    the merge_mode of the Bidirectional around it, None where that is not told. timed: the name of the
    TimeDistributed around it. arrays: the name of each in it, and that in the file.
    """

    words: Steps = ()
    class_name: str = ""
    config: Config = field(default_factory=dict[str, object])
    run: Config = field(default_factory=dict[str, object])
    names: Steps = ()
    in_cell: bool = False
    merge: object = None
    timed: str = ""
    arrays: tuple[tuple[str, str], ...] = ()

    @property
    def cell(self) -> str | None:
        """Which of Keras' own cells it is, as layouts call them; None for anything else."""
        return CELLS.get(self.class_name)

    @property
    def title(self) -> str:
        """What it is called in its layer."""
        words = "/".join(self.words)
        return f"{words} ({self.class_name})" if words and self.class_name else words or self.class_name

    @property
    def way(self) -> str | None:
        """The direction that it is of, if any."""
        return next((word for word in self.words if word in DIRECTIONS.values()), None)

    def agrees(self, scope: Steps) -> bool:
        """Whether the names around a weight are those of this part."""
        others = [way for way in DIRECTIONS.values() if way != self.way]
        own = self.names[-1] if self.names else ""
        return any(part in (own, f"{self.way}_{own}") for part in scope) and not any(
            part.startswith(f"{way}_") for part in scope for way in others
        )


@dataclass(frozen=True)
class Below:
    """An object in another: the groups that lead to it, the words for that, and what it is."""

    steps: Steps
    words: Steps
    node: Config


def held(node: Config, by_class: bool) -> Iterator[Below]:
    """What an object of a configuration holds.

    by_class: whether the cells of a stack are in groups named by their classes, and not by their numbers.
    """
    name, config = class_of(node), table(node.get("config"))
    if name in CELLS:
        return
    if name == "Bidirectional":
        forward = table(config.get("layer"))
        own = table(forward.get("config"))
        turned = {**forward, "config": {**own, "go_backwards": not own.get("go_backwards")}}
        yield Below(("forward_layer",), ("forward",), forward)
        yield Below(("backward_layer",), ("backward",), table(config.get("backward_layer")) or turned)
    elif name == "StackedRNNCells":
        counts: dict[str, int] = {}
        for place, cell in enumerate(map(table, rows(config.get("cells")))):
            group = numbered(snake(str(cell.get("class_name"))), counts) if by_class else str(place)
            yield Below(("cells", group), ("cells", str(place)), cell)
    else:
        for key, value in config.items():
            if table(value).get("class_name") and key not in ("dtype", "build_config"):
                yield Below((key,), () if key in UNSAID else (key,), table(value))


def places(node: Config, store: Store, by_class: bool = True) -> dict[Steps, Part]:
    """What a layer is and holds by the groups that lead to it, in its order.

    >>> cells = [{"class_name": "LSTMCell", "config": {}}, {"class_name": "LSTMCell", "config": {}}]
    >>> stack = {"class_name": "StackedRNNCells", "config": {"cells": cells}}
    >>> for steps, part in places({"class_name": "RNN", "config": {"cell": stack}}, Store(None, 0)).items():
    ...     if part.cell:
    ...         print("/".join(steps), part.title)
    cell/cells/lstm_cell cells/0 (LSTMCell)
    cell/cells/lstm_cell_1 cells/1 (LSTMCell)
    """
    whole = Part(run=table(node.get("config")))
    pending: list[tuple[Config, Steps, Part]] = [(node, (), whole)]
    found: dict[Steps, Part] = {}
    while pending:
        node, steps, around = pending.pop()
        if len(steps) > DEEPEST:
            raise FileError(f"its configuration has layers in layers more than {DEEPEST} deep")
        config = table(node.get("config"))
        name = config.get("name")
        names = (*around.names, str(name)) if name else around.names
        store.take(8 * OBJECT, "what its layers hold")
        part = replace(around, class_name=class_of(node), config=config, names=names)
        if part.class_name == "Bidirectional":
            part = replace(part, merge=config.get("merge_mode", "concat"))
        elif part.class_name == TIMED:
            part = replace(part, timed=part.timed or "/".join(names))
        found[steps] = part
        for one in reversed(list(held(node, by_class))):
            stepped = one.steps[0] in ("cell", "cells")
            run = part.run if stepped else table(one.node.get("config"))
            in_cell = stepped and class_of(one.node) != "StackedRNNCells"
            inner = replace(part, words=(*part.words, *one.words), run=run, in_cell=in_cell)
            pending.append((one.node, (*steps, *one.steps), inner))
    return found


def part_at(steps: Steps, known: Mapping[Steps, Part]) -> Part:
    """The part that groups lead to: a known one, or one that the groups' names alone tell of.

    >>> part_at(("both", "forward_layer", "cell"), {}).words
    ('both', 'forward')
    """
    own = known.get(steps) or (known.get(steps[:-1]) if steps[-1:] == ("cell",) else None)
    if own is not None:
        return own
    words = tuple(DIRECTIONS.get(step, step) for step in steps if step not in UNSAID)
    return Part(words, in_cell=bool({"cell", "cells"} & {*steps}))


def check_complete(expected: Iterable[Part], found: Iterable[Part]) -> None:
    """Raises `FileError` where a configuration has cells of which the file has no arrays."""
    there = {part.words for part in found if part.arrays}
    missing = [part.title for part in expected if part.words not in there and (part.cell or part.in_cell)]
    if there and missing:
        raise FileError(f"its configuration has {missing[0]}, of which the file has no arrays")


# ---- the names of weights ----------------------------------------------------------------------------------


def by_scope(parts: Sequence[Part], scopes: Sequence[Steps]) -> list[Part]:
    """The part that each scope of names belongs to: by what it is called, or else by the order.

    Raises `FileError` for another number of scopes.
    """
    if len(parts) != len(scopes):
        titles = [part.title for part in parts[:MOST_SHOWN]]
        raise FileError(
            f"its configuration has {len(parts)} cells ({', '.join(titles)}), and the file has arrays of "
            f"{len(scopes)}"
        )
    fits = [[scope for scope in scopes if part.agrees(scope)] for part in parts]
    owners = {some[0]: part for part, some in zip(parts, fits, strict=True) if len(some) == 1}
    return [owners[scope] for scope in scopes] if len(owners) == len(parts) else list(parts)


def words_of(scopes: Sequence[Steps], ordered: bool = True) -> list[Steps]:
    """The words for each scope of names in a layer of which nothing else is known.

    ordered: whether the cells of a stack come in their order, and so have numbers.

    >>> words_of([("forward_gru", "gru_cell"), ("backward_gru", "gru_cell")])
    [('forward',), ('backward',)]
    >>> words_of([("stacked_rnn_cells", "lstm_cell"), ("stacked_rnn_cells", "gru_cell")])
    [('cells', '0'), ('cells', '1')]
    >>> words_of([("lstm", "lstm_cell"), ("dense",)])
    [('lstm',), ('dense',)]
    """
    plain = [tuple(worded(scope)) for scope in scopes]
    last = [scope[-1:] for scope in scopes]
    if len(set(plain)) < len(plain) and all(CELL.fullmatch(one[0]) for one in last if one):
        counts: dict[Steps, int] = {}
        for place, words in enumerate(plain if all(last) else ()):
            counts[words] = counts.get(words, -1) + 1
            plain[place] = (*words, "cells", str(counts[words]) if ordered else last[place][0])
    mixed = len({bool({*DIRECTIONS.values()} & {*words}) for words in plain}) > 1
    if len(set(plain)) < len(plain) or mixed:
        return [tuple(worded(scope, whole=True)) for scope in scopes]
    return plain


def worded(scope: Steps, whole: bool = False) -> Iterator[str]:
    """The words for a scope; whole: with the names that directions and cells have."""
    for place, part in enumerate(scope):
        way, _, own = part.partition("_")
        if way in DIRECTIONS.values() and own:
            yield from [own, way] if whole else [way]
        elif not STACK.fullmatch(part) and (
            not CELL.fullmatch(part) or place < len(scope) - 1 or (whole and not place)
        ):
            yield part
