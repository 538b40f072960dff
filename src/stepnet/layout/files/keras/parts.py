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
from dataclasses import field, replace

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError
from stepnet.layout.files.keras.config import DEEPEST
from stepnet.layout.files.keras.names import (
    BIDIRECTIONAL,
    CELLS,
    DIRECTIONS,
    OWN,
    RUNNERS,
    STACKED,
    TIMED,
    UNNAMED,
)
from stepnet.layout.files.keras.nodes import (
    Config,
    class_of,
    is_weighted,
    numbered,
    rounding,
    rows,
    snake,
    table,
)
from stepnet.layout.files.store import OBJECT, Store

KeyPath = tuple[str, ...]

MOST_SHOWN = 4
CELL = re.compile(r"\w*_cell(_\d+)?")  # a cell in the names of weights
STACK = re.compile(r"stacked_rnn_cells(_\d+)?")


@dataclass(frozen=True)
class Sublayer:
    """A part of a Keras layer, such as a cell, that may have arrays of its own.

    Attributes:
        path: Its path in the layer, such as ("forward", "cells", "1"); () for the layer itself.
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

    path: KeyPath = ()
    class_name: str = ""
    config: Config = field(default_factory=dict[str, object])
    run: Config = field(default_factory=dict[str, object])
    names: KeyPath = ()
    in_cell: bool = False
    merge: object = None
    timed: str = ""
    foreign: KeyPath = ()
    policies: KeyPath = ()
    arrays: tuple[tuple[str, str], ...] = ()

    @property
    def cell(self) -> str | None:
        """The cell of this part of a layer, as layouts name it ("gru"); None if it is not Keras' own."""
        return CELLS.get(self.class_name)

    @property
    def title(self) -> str:
        """The name in messages of this part of a Keras layer: its path in the layer, and its class."""
        path = "/".join(self.path)
        return f"{path} ({self.class_name})" if path and self.class_name else path or self.class_name

    @property
    def direction(self) -> str | None:
        """The direction of this part of a Keras layer, "forward" or "backward"; None without one."""
        return next((key for key in self.path if key in DIRECTIONS.values()), None)

    def agrees(self, scope: KeyPath) -> bool:
        """Returns True if a scope, the names in front of a weight's own in its full name, is that of this
        part of a Keras layer: if it has the part's name, and no name of the other direction.
        """
        others = [way for way in DIRECTIONS.values() if way != self.direction]
        own = self.names[-1] if self.names else ""
        return any(name in (own, f"{self.direction}_{own}") for name in scope) and not any(
            name.startswith(f"{way}_") for name in scope for way in others
        )


@dataclass(frozen=True)
class NestedObject:
    """An object within a Keras layer: its path of groups in a file, its path in the layer, its config."""

    groups: KeyPath
    path: KeyPath
    node: Config


def inner_objects(node: Config, by_class: bool) -> Iterator[NestedObject]:
    """Yields the objects, such as cells or wrapped layers, inside a Keras layer's configuration `node`, each
    with its path of groups (folders of arrays) in a file, its path in names of arrays, and its configuration;
    none for a cell. The backward layer of a Bidirectional, if it has no configuration, is the forward one
    reversed.

    by_class: True if the groups of the cells in a stack are named by their classes, and not numbered.
    """
    name, config = class_of(node), table(node.get("config"))
    if name in CELLS:
        return
    if name == BIDIRECTIONAL or "merge_mode" in config:
        forward = table(config.get("layer"))
        own = table(forward.get("config"))
        reversed_layer = {**forward, "config": {**own, "go_backwards": not own.get("go_backwards")}}
        yield NestedObject(("forward_layer",), ("forward",), forward)
        yield NestedObject(
            ("backward_layer",), ("backward",), table(config.get("backward_layer")) or reversed_layer
        )
    elif name == STACKED:
        counts: dict[str, int] = {}
        for index, cell in enumerate(map(table, rows(config.get("cells")))):
            group = numbered(snake(str(cell.get("class_name"))), counts) if by_class else str(index)
            yield NestedObject(("cells", group), ("cells", str(index)), cell)
    else:
        for key, value in config.items():
            if table(value).get("class_name") and key not in ("dtype", "build_config"):
                yield NestedObject((key,), () if key in UNNAMED else (key,), table(value))


def layer_parts(node: Config, store: Store, by_class: bool = True) -> dict[KeyPath, Sublayer]:
    """Returns a Keras layer and its parts (wrapped layers and cells, at any depth) in order, by the path of
    groups (folders of arrays) that each has in a file of weights.

    node: the layer's configuration. store: the limit on memory. by_class: True if the groups of the cells in
    a stack are named by their classes, as in files of Keras 3, and not numbered. Raises `FileError` for
    layers that are nested too deep.

    >>> cells = [{"class_name": "LSTMCell", "config": {}}, {"class_name": "LSTMCell", "config": {}}]
    >>> stack = {"class_name": "StackedRNNCells", "config": {"cells": cells}}
    >>> layer = {"class_name": "RNN", "config": {"cell": stack}}
    >>> for steps, part in layer_parts(layer, Store(None, 0)).items():
    ...     if part.cell:
    ...         print("/".join(steps), part.title)
    cell/cells/lstm_cell cells/0 (LSTMCell)
    cell/cells/lstm_cell_1 cells/1 (LSTMCell)
    """
    outermost = Sublayer(run=table(node.get("config")))
    pending: list[tuple[Config, KeyPath, Sublayer]] = [(node, (), outermost)]
    sublayers: dict[KeyPath, Sublayer] = {}
    while pending:
        node, steps, around = pending.pop()
        if len(steps) > DEEPEST:
            raise FileError(f"its configuration has layers in layers more than {DEEPEST} deep")
        config = table(node.get("config"))
        name = config.get("name")
        names = (*around.names, str(name)) if name else around.names
        store.take(8 * OBJECT, "what its layers hold")
        sublayer = replace(around, class_name=class_of(node), config=config, names=names)
        if sublayer.class_name == BIDIRECTIONAL or "merge_mode" in config:
            sublayer = replace(sublayer, merge=config.get("merge_mode", "concat"))
        elif sublayer.class_name == TIMED:
            sublayer = replace(sublayer, timed=sublayer.timed or "/".join(names))
        policy = rounding(node)
        if policy and policy not in sublayer.policies:
            sublayer = replace(sublayer, policies=(*sublayer.policies, policy))
        sublayers[steps] = sublayer
        if sublayer.class_name not in OWN:
            title = f"/{sublayer.title}" if sublayer.path else f" ({sublayer.class_name})"
            sublayer = replace(sublayer, foreign=(*sublayer.foreign, title))
        for child in reversed(list(inner_objects(node, by_class))):
            stepped = child.groups[0] in ("cell", "cells")
            run = sublayer.run if stepped else table(child.node.get("config"))
            in_cell = stepped and class_of(child.node) != STACKED
            inner = replace(sublayer, path=(*sublayer.path, *child.path), run=run, in_cell=in_cell)
            pending.append((child.node, (*steps, *child.groups), inner))
    return sublayers


def sublayer_at(steps: KeyPath, configured: Mapping[KeyPath, Sublayer]) -> Sublayer:
    """Returns the part of a Keras layer, such as a cell, whose arrays are at the path of groups (folders of
    arrays) `steps` in the layer's group: the part in the configuration (`configured`, by path of groups) or,
    if there is none, a new one that is described by the groups' names.

    >>> sublayer_at(("both", "forward_layer", "cell"), {}).path
    ('both', 'forward')
    """
    sublayer = configured.get(steps) or (configured.get(steps[:-1]) if steps[-1:] == ("cell",) else None)
    if sublayer is not None:
        return sublayer
    path = tuple(DIRECTIONS.get(step, step) for step in steps if step not in UNNAMED)
    return Sublayer(path, in_cell=bool({"cell", "cells"} & {*steps}))


def check_complete(expected: Iterable[Sublayer], sublayers: Iterable[Sublayer]) -> None:
    """Raises `FileError` if a file has arrays for some cells of a Keras layer and not for others. expected:
    the parts in the layer's configuration. sublayers: the parts that were found in the file, with their
    arrays.
    """
    filled = {sublayer.path for sublayer in sublayers if sublayer.arrays}
    missing = [
        sublayer.title
        for sublayer in expected
        if sublayer.path not in filled and (sublayer.cell or sublayer.in_cell)
    ]
    if filled and missing:
        raise FileError(f"its configuration has {missing[0]}, of which the file has no arrays")


def is_filled(node: Config, sublayers: Iterable[Sublayer]) -> bool:
    """Returns True if a file must have arrays of a Keras layer: if its class has weights, or runs cells that
    have. node: the layer's configuration. sublayers: its parts.
    """
    return is_weighted(node) or (class_of(node) in RUNNERS and any(sublayer.cell for sublayer in sublayers))


# ---- the names of weights ----------------------------------------------------------------------------------


def by_scope(sublayers: Sequence[Sublayer], scopes: Sequence[KeyPath]) -> list[Sublayer]:
    """Assigns scopes, the names in front of a weight's own in its full name, to the parts of a Keras layer,
    such as cells: returns the part for each scope. If each part agrees with exactly one scope by name, it
    gets this scope; else parts and scopes are paired in order.

    Raises `FileError` if the numbers of parts and of scopes differ.
    """
    if len(sublayers) != len(scopes):
        titles = [sublayer.title for sublayer in sublayers[:MOST_SHOWN]]
        raise FileError(
            f"its configuration has {len(sublayers)} cells ({', '.join(titles)}), and the file has arrays of "
            f"{len(scopes)}"
        )
    fits = [[scope for scope in scopes if sublayer.agrees(scope)] for sublayer in sublayers]
    owners = {some[0]: sublayer for sublayer, some in zip(sublayers, fits, strict=True) if len(some) == 1}
    return [owners[scope] for scope in scopes] if len(owners) == len(sublayers) else list(sublayers)


def paths_of(scopes: Sequence[KeyPath], ordered: bool = True) -> list[KeyPath]:
    """Returns for each scope, the names in front of a weight's own in a Keras file, the path of the weight's
    part of the layer, in the form that layouts (arrangements of weights) use. Scopes of equal paths that end
    in cells are a stack of cells; if paths are equal otherwise, the names in them are not shortened.

    ordered: True if the cells of a stack are listed in order, so that they are numbered.

    >>> paths_of([("forward_gru", "gru_cell"), ("backward_gru", "gru_cell")])
    [('forward',), ('backward',)]
    >>> paths_of([("stacked_rnn_cells", "lstm_cell"), ("stacked_rnn_cells", "gru_cell")])
    [('cells', '0'), ('cells', '1')]
    >>> paths_of([("lstm", "lstm_cell"), ("dense",)])
    [('lstm',), ('dense',)]
    """
    plain = [tuple(sublayer_names(scope)) for scope in scopes]
    last = [scope[-1:] for scope in scopes]
    if len(set(plain)) < len(plain) and all(CELL.fullmatch(name[0]) for name in last if name):
        counts: dict[KeyPath, int] = {}
        for index, path in enumerate(plain if all(last) else ()):
            counts[path] = counts.get(path, -1) + 1
            plain[index] = (*path, "cells", str(counts[path]) if ordered else last[index][0])
    mixed = len({bool({*DIRECTIONS.values()} & {*path}) for path in plain}) > 1
    if len(set(plain)) < len(plain) or mixed:
        return [tuple(sublayer_names(scope, full=True)) for scope in scopes]
    return plain


def sublayer_names(scope: KeyPath, full: bool = False) -> Iterator[str]:
    """Yields the names of a sublayer (part of a Keras layer) that a weight belongs to, outermost first.

    "stacked_rnn_cells" is left out, and so is a cell, such as "lstm_cell", that is the last name. Of
    "forward_lstm" only the direction is left, "forward".

    scope: the names in front of the weight's own name.
    full: keeps also the layer of "forward_lstm", as "lstm", "forward", and a cell that is the only name.
    """
    for index, name in enumerate(scope):
        way, _, own = name.partition("_")
        if way in DIRECTIONS.values() and own:
            yield from [own, way] if full else [way]
        elif not STACK.fullmatch(name) and (
            not CELL.fullmatch(name) or index < len(scope) - 1 or (full and not index)
        ):
            yield name
