"""The parts of a Keras layer that have arrays of their own, such as cells within wrappers.

    Bidirectional(RNN([LSTMCell, GRUCell]))     forward_layer/cell/cells/lstm_cell  ->  forward/cells/0
                                                forward_layer/cell/cells/gru_cell   ->  forward/cells/1
                                                backward_layer/cell/cells/...       ->  backward/cells/...

A configuration is a tree of objects, and the groups of a file are a tree with the same branches, named after
attributes. Both are walked together. If the configuration of a layer does not list its parts, as for a class
defined by the program, the names of groups are used.

Sources: keras/src/layers/rnn/ and saving/saving_lib.py of 3.15; tf_keras 2.21.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stepnet.errors import FileError
from stepnet.files.keras.config import DEEPEST
from stepnet.files.keras.names import BIDIRECTIONAL, CELLS, DIRECTIONS, OWN, RUNNERS, STACKED, TIMED, UNNAMED
from stepnet.files.keras.nodes import (
    Config,
    class_of,
    is_weighted,
    numbered,
    rounding,
    rows,
    snake,
    table,
)
from stepnet.files.store import OBJECT, Store

Steps = tuple[str, ...]

MOST_SHOWN = 4
CELL = re.compile(r"\w*_cell(_\d+)?")  # a cell in the names of weights
STACK = re.compile(r"stacked_rnn_cells(_\d+)?")


@dataclass(frozen=True)
class LayerPart:
    """A part of a Keras layer, such as a cell, that may have arrays of its own.

    Attributes:
        words: Its path in the layer, such as ("forward", "cells", "1"); () for the layer itself.
        class_name: Its class; "" if it is unknown.
        config: Its configuration.
        run: The configuration of the layer that runs it over the steps; its own if it is a layer.
        names: Its name, and those of the objects around it.
        in_cell: Whether it is run as a cell.
        merge: The merge_mode of the Bidirectional around it; None if it is unknown.
        timed: The name of the TimeDistributed around it.
        foreign: The titles of the layers around it whose classes are not Keras' own.
        policies: The dtype policies of it and of the layers around it that round otherwise than float32.
        arrays: The name of each of its arrays, with the path in the file.
    """

    words: Steps = ()
    class_name: str = ""
    config: Config = field(default_factory=dict[str, object])
    run: Config = field(default_factory=dict[str, object])
    names: Steps = ()
    in_cell: bool = False
    merge: object = None
    timed: str = ""
    foreign: Steps = ()
    policies: Steps = ()
    arrays: tuple[tuple[str, str], ...] = ()

    @property
    def cell(self) -> str | None:
        """The cell of this part of a layer, as layouts name it ("gru"); None if it is not Keras' own."""
        return CELLS.get(self.class_name)

    @property
    def title(self) -> str:
        """The name in messages of this part of a Keras layer: its path in the layer, and its class."""
        words = "/".join(self.words)
        return f"{words} ({self.class_name})" if words and self.class_name else words or self.class_name

    @property
    def way(self) -> str | None:
        """The direction of this part of a Keras layer, "forward" or "backward"; None without one."""
        return next((word for word in self.words if word in DIRECTIONS.values()), None)

    def agrees(self, scope: Steps) -> bool:
        """Returns True if a scope, the names in front of a weight's own in a file, belongs to this part of a
        layer: if it has the part's name, and not the other direction.
        """
        others = [way for way in DIRECTIONS.values() if way != self.way]
        own = self.names[-1] if self.names else ""
        return any(part in (own, f"{self.way}_{own}") for part in scope) and not any(
            part.startswith(f"{way}_") for part in scope for way in others
        )


@dataclass(frozen=True)
class Below:
    """An object within a Keras layer: its path of groups in a file, its path in the layer, its config."""

    steps: Steps
    words: Steps
    node: Config


def inner_objects(node: Config, by_class: bool) -> Iterator[Below]:
    """Yields the objects, such as cells or wrapped layers, within an object (a layer) of a Keras
    configuration. The backward layer of a Bidirectional, if it has no configuration, is the forward one
    reversed.

    by_class: True if the cells of a stack are in groups named by their classes, and not by their numbers.
    """
    name, config = class_of(node), table(node.get("config"))
    if name in CELLS:
        return
    if name == BIDIRECTIONAL or "merge_mode" in config:
        forward = table(config.get("layer"))
        own = table(forward.get("config"))
        turned = {**forward, "config": {**own, "go_backwards": not own.get("go_backwards")}}
        yield Below(("forward_layer",), ("forward",), forward)
        yield Below(("backward_layer",), ("backward",), table(config.get("backward_layer")) or turned)
    elif name == STACKED:
        counts: dict[str, int] = {}
        for index, cell in enumerate(map(table, rows(config.get("cells")))):
            group = numbered(snake(str(cell.get("class_name"))), counts) if by_class else str(index)
            yield Below(("cells", group), ("cells", str(index)), cell)
    else:
        for key, value in config.items():
            if table(value).get("class_name") and key not in ("dtype", "build_config"):
                yield Below((key,), () if key in UNNAMED else (key,), table(value))


def layer_parts(node: Config, store: Store, by_class: bool = True) -> dict[Steps, LayerPart]:
    """Returns a Keras layer and its parts (wrapped layers and cells, at any depth) in order, by the path of
    their groups in a file of weights.

    by_class: True if the cells of a stack are in groups named by their classes, and not by their numbers.

    >>> cells = [{"class_name": "LSTMCell", "config": {}}, {"class_name": "LSTMCell", "config": {}}]
    >>> stack = {"class_name": "StackedRNNCells", "config": {"cells": cells}}
    >>> for steps, part in places({"class_name": "RNN", "config": {"cell": stack}}, Store(None, 0)).items():
    ...     if part.cell:
    ...         print("/".join(steps), part.title)
    cell/cells/lstm_cell cells/0 (LSTMCell)
    cell/cells/lstm_cell_1 cells/1 (LSTMCell)
    """
    outermost = LayerPart(run=table(node.get("config")))
    pending: list[tuple[Config, Steps, LayerPart]] = [(node, (), outermost)]
    parts: dict[Steps, LayerPart] = {}
    while pending:
        node, steps, around = pending.pop()
        if len(steps) > DEEPEST:
            raise FileError(f"its configuration has layers in layers more than {DEEPEST} deep")
        config = table(node.get("config"))
        name = config.get("name")
        names = (*around.names, str(name)) if name else around.names
        store.take(8 * OBJECT, "what its layers hold")
        part = replace(around, class_name=class_of(node), config=config, names=names)
        if part.class_name == BIDIRECTIONAL or "merge_mode" in config:
            part = replace(part, merge=config.get("merge_mode", "concat"))
        elif part.class_name == TIMED:
            part = replace(part, timed=part.timed or "/".join(names))
        policy = rounding(node)
        if policy and policy not in part.policies:
            part = replace(part, policies=(*part.policies, policy))
        parts[steps] = part
        if part.class_name not in OWN:
            title = f"/{part.title}" if part.words else f" ({part.class_name})"
            part = replace(part, foreign=(*part.foreign, title))
        for child in reversed(list(inner_objects(node, by_class))):
            stepped = child.steps[0] in ("cell", "cells")
            run = part.run if stepped else table(child.node.get("config"))
            in_cell = stepped and class_of(child.node) != STACKED
            inner = replace(part, words=(*part.words, *child.words), run=run, in_cell=in_cell)
            pending.append((child.node, (*steps, *child.steps), inner))
    return parts


def part_at(steps: Steps, configured: Mapping[Steps, LayerPart]) -> LayerPart:
    """Returns the part of a layer, such as a cell, at a path of groups: a configured part, or a new one
    described by the groups' names.

    >>> part_at(("both", "forward_layer", "cell"), {}).words
    ('both', 'forward')
    """
    part = configured.get(steps) or (configured.get(steps[:-1]) if steps[-1:] == ("cell",) else None)
    if part is not None:
        return part
    words = tuple(DIRECTIONS.get(step, step) for step in steps if step not in UNNAMED)
    return LayerPart(words, in_cell=bool({"cell", "cells"} & {*steps}))


def check_complete(expected: Iterable[LayerPart], parts: Iterable[LayerPart]) -> None:
    """Raises `FileError` if the file has arrays for some cells of a Keras layer and not for others. expected:
    the parts in the layer's configuration. parts: those that were found in the file.
    """
    filled = {part.words for part in parts if part.arrays}
    missing = [part.title for part in expected if part.words not in filled and (part.cell or part.in_cell)]
    if filled and missing:
        raise FileError(f"its configuration has {missing[0]}, of which the file has no arrays")


def is_filled(node: Config, parts: Iterable[LayerPart]) -> bool:
    """Returns True if a file must have arrays of a Keras layer: its class has some, or that of its cells."""
    return is_weighted(node) or (class_of(node) in RUNNERS and any(part.cell for part in parts))


# ---- the names of weights ----------------------------------------------------------------------------------


def by_scope(parts: Sequence[LayerPart], scopes: Sequence[Steps]) -> list[LayerPart]:
    """Returns for each scope (the names in front of a weight's own) the part of the layer, such as a cell,
    that it belongs to: by name if each part agrees with exactly one scope, else by order.

    Raises `FileError` if the numbers of parts and of scopes differ.
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
    """Returns for each scope, the names in front of a weight's own in a file, its path in the layer in the
    terms of layouts. Scopes of equal paths that end in cells are a stack; if paths are equal otherwise, full
    names are kept.

    ordered: True if the cells of a stack are listed in order, so that they are numbered.

    >>> words_of([("forward_gru", "gru_cell"), ("backward_gru", "gru_cell")])
    [('forward',), ('backward',)]
    >>> words_of([("stacked_rnn_cells", "lstm_cell"), ("stacked_rnn_cells", "gru_cell")])
    [('cells', '0'), ('cells', '1')]
    >>> words_of([("lstm", "lstm_cell"), ("dense",)])
    [('lstm',), ('dense',)]
    """
    plain = [tuple(worded(scope)) for scope in scopes]
    last = [scope[-1:] for scope in scopes]
    if len(set(plain)) < len(plain) and all(CELL.fullmatch(name[0]) for name in last if name):
        counts: dict[Steps, int] = {}
        for index, words in enumerate(plain if all(last) else ()):
            counts[words] = counts.get(words, -1) + 1
            plain[index] = (*words, "cells", str(counts[words]) if ordered else last[index][0])
    mixed = len({bool({*DIRECTIONS.values()} & {*words}) for words in plain}) > 1
    if len(set(plain)) < len(plain) or mixed:
        return [tuple(worded(scope, full=True)) for scope in scopes]
    return plain


def worded(scope: Steps, full: bool = False) -> Iterator[str]:
    """Yields the path in its layer of a scope, the names in front of a weight's own: without the names of
    cells, and of "forward_lstm" only the direction. full: keeps the names of layers and of cells.
    """
    for index, part in enumerate(scope):
        way, _, own = part.partition("_")
        if way in DIRECTIONS.values() and own:
            yield from [own, way] if full else [way]
        elif not STACK.fullmatch(part) and (
            not CELL.fullmatch(part) or index < len(scope) - 1 or (full and not index)
        ):
            yield part
