"""The lanes of a loop on a device, and the steps of a sequence that each runs in each turn.

A group of blocks has some lanes, and runs *turns*, in each of which a lane runs steps of one sequence. A turn
ends when its longest lane does (sorted), or when any sequence ends (refilled), whose lane has the next one in
the following turn, while the others go on.

    lengths 5 4 2 2 1, two lanes      sorted    a a a a a | c c | e      refilled    a a a a | a | e
                                                b b b b . | d d | .                  b b b b | c | ...

Nothing here depends on where the steps lie in arrays, nor on the device.
"""

import numpy as np

from stepnet.compiler.targets.cuda.codes import LANE_WORDS
from stepnet.compiler.targets.cuda.device import Array
from stepnet.compiler.targets.lanes import assign_lanes, lanes_for
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError
from stepnet.ragged.positions import Positions

MOST_STEPS = 2**31 - 1
"""The steps of a sequence that kernels count in 32 bits."""
ROW, START, TIME, BEFORE, COUNT, ENDS, STEPS = range(len(LANE_WORDS))


@dataclass(frozen=True, eq=False)
class LaneTable:
    """The steps that the lanes of all groups of blocks run in all turns.

    first: int64 [groups + 1], the first turn of each group, and the number of turns.
    lanes: int64 [turns, lanes of a group, LANE_WORDS]; starts and times are 0 until `placed`.
    """

    first: Array
    lanes: Array

    def __post_init__(self) -> None:
        """Raises `InputError` for a sequence of more steps than kernels count."""
        most = int(self.lanes[:, :, COUNT].max(initial=0))
        if most > MOST_STEPS:
            raise InputError(
                f"a sequence has {most:,} steps, and a GPU runs at most {MOST_STEPS:,} of one in a call: "
                "give it in pieces, with the memories of each as `initial=` of the next"
            )

    @property
    def groups(self) -> int:
        """The number of groups of blocks."""
        return len(self.first) - 1

    @computed_once
    def full_steps(self) -> int:
        """The steps of all sequences."""
        return int(self.lanes[:, :, COUNT].sum())

    def loads(self, whole: int = 1) -> tuple[Array, Array]:
        """Returns the steps of each group, and its turns. whole: a turn's steps are a multiple of it."""
        steps = -(-self.lanes[:, 0, STEPS] // whole) * whole
        until = np.concatenate([[0], np.cumsum(steps)])
        return np.diff(until[self.first]), np.diff(self.first)

    def placed(self, positions: Positions, reverse: bool) -> Array:
        """Returns the lanes with the places of their steps in arrays. reverse: whether sequences run from
        their last steps to their first.
        """
        lanes = self.lanes.copy()
        rows, before, runs = lanes[:, :, ROW], lanes[:, :, BEFORE], lanes[:, :, COUNT] > 0
        np.copyto(lanes[:, :, START], positions.starts[rows], where=runs)
        time = positions.lengths[rows] - 1 - before if reverse else before
        np.copyto(lanes[:, :, TIME], time, where=runs)
        return lanes


@dataclass(frozen=True)
class LanePace:
    """The speed at which a device runs a loop, as an estimate.

    at_once: the groups of blocks that run at once. step: the microseconds of a step of these.
    turn: the microseconds between two turns of a group.
    """

    at_once: int
    step: float
    turn: float


def idle(turns: int, group_lanes: int) -> Array:
    """Returns the table entries of lanes that are idle in all turns."""
    lanes = np.zeros((turns, group_lanes, len(LANE_WORDS)), np.int64)
    lanes[:, :, BEFORE] = 1
    return lanes


def whole_sequences(rows: Array, lengths: Array, group_lanes: int) -> Array:
    """Returns the lanes of turns that each run some sequences whole, side by side.

    rows: the sequences, in their order. lengths: of all sequences.
    """
    lanes = idle(-(-len(rows) // group_lanes), group_lanes)
    flat = lanes.reshape(-1, len(LANE_WORDS))
    flat[: len(rows), ROW], flat[: len(rows), COUNT] = rows, lengths[rows]
    flat[: len(rows), BEFORE], flat[: len(rows), ENDS] = 0, 1
    lanes[:, :, STEPS] = lanes[:, :, COUNT].max(1)[:, None]
    return lanes


def sorted_lanes(lengths: Array, group_lanes: int, most: int = 0) -> LaneTable:
    """Returns the table in which each turn runs sequences of like lengths whole.

    lengths: the steps of each sequence. group_lanes: the lanes of a group. most: the most groups, which share
        the turns so that their steps are about as many; 0 for a group for each turn.

    >>> table = sorted_lanes(np.array([2, 5, 4]), 2)
    >>> table.first.tolist(), table.lanes[:, :, ROW].tolist(), table.lanes[:, :, COUNT].tolist()
    ([0, 1, 2], [[1, 2], [0, 0]], [[5, 4], [2, 0]])
    """
    lanes = whole_sequences(np.argsort(-lengths, kind="stable"), lengths, group_lanes)
    turns = len(lanes)
    if not 0 < most < turns:
        return LaneTable(np.arange(turns + 1), lanes)
    group_of, _ = assign_lanes(lanes[:, 0, STEPS], most)
    first = np.concatenate([[0], np.cumsum(np.bincount(group_of, minlength=most))])
    return LaneTable(first, lanes[np.argsort(group_of, kind="stable")])


def spans(lengths: Array, most: int) -> tuple[Array, Array, Array, Array]:
    """Lays sequences end to end in at most `most` lanes. Returns the sequences with steps, lane after lane,
    and for each of them its lane, the first of the lane's steps that is its own, and the first after it.
    """
    given = lanes_for(lengths, most)
    lane_of = np.repeat(np.arange(given.count), np.diff(given.first))
    own = lengths[given.order]
    until = np.cumsum(own)
    end = until - (until - own)[given.first[:-1]][lane_of]
    return given.order, lane_of, end - own, end


def refilled_lanes(lengths: Array, group_lanes: int, groups: int, whole: int = 1) -> LaneTable:
    """Returns the table in which a lane begins its next sequence in the step after one ends.

    lengths: the steps of each sequence. group_lanes, groups: the lanes of a group, and the most groups.
    whole: sequences end at a multiple of so many steps, some of which are idle.

    >>> table = refilled_lanes(np.array([5, 4, 2, 2, 1]), 2, 1)
    >>> table.lanes[:, :, ROW].tolist(), table.lanes[:, 0, STEPS].tolist()
    ([[0, 1], [0, 2], [3, 2], [3, 4]], [4, 1, 1, 1])
    """
    order, lane_of, begin, end = spans(-(-lengths // whole) * whole, group_lanes * groups)
    # A turn of a group ends where any of its sequences does.
    far = int(end.max(initial=0)) + 1
    group, turn_end = np.divmod(np.unique(lane_of // group_lanes * far + end), far)
    first = np.searchsorted(group, np.arange(int(group[-1]) + 2 if len(group) else 2))
    turn_begin = np.zeros_like(turn_end)
    turn_begin[1:] = np.where(group[1:] == group[:-1], turn_end[:-1], 0)
    lanes = idle(len(group), group_lanes)
    lane = group[:, None] * group_lanes + np.arange(group_lanes)
    at = np.searchsorted(lane_of * far + begin, lane * far + turn_begin[:, None], "right") - 1
    runs = (lane_of[at] == lane) & (turn_begin[:, None] < end[at])
    before = turn_begin[:, None] - begin[at]
    row = order[at]
    count = np.minimum(lengths[row] - before, (turn_end - turn_begin)[:, None])
    for word, values in (
        (ROW, row),
        (BEFORE, before),
        (COUNT, count),
        (ENDS, before + count == lengths[row]),
    ):
        np.copyto(lanes[:, :, word], values, where=runs)
    lanes[:, :, STEPS] = lanes[:, :, COUNT].max(1)[:, None]
    if len(order) == len(lengths):
        return LaneTable(first, lanes)
    empty = whole_sequences(np.flatnonzero(lengths == 0), lengths, group_lanes)
    first[-1] += len(empty)
    return LaneTable(first, np.concatenate([lanes, empty]))
