"""How a call is described to machine code: a row of 64-bit words for each thread, and what all share."""

# The 64-bit words that a call is described by, in order; the pointers of the user's arrays follow.
WORDS = (
    "thread",
    "progress",
    "barrier",
    "rest",
    "clock",
    "slice",
    "status",
    "constants",
    "now",
    "next",
    "lane",
    "block",
    "sequence",
    "nowhere",
    "lanes",
    "steps",
    "block_steps",
    "order",
    "first",
    "lane_steps",
    "starts",
    "lengths",
    "step_offsets",
    "cursor",
    "left",
    "current",
    "count",
    "where",
    "owner",
    "fresh",
    "done",
    "put",
    "step_base",
    "step_rows",
    "step_fresh",
    "begun",
    "last_only",
    "reverse",
)
PROGRESS = ("threads", "pause", "begin", "swapped")
"""The words that say how far a call is, the same for all its threads: how many there are (0 until that is
known), whether they pause, the step to begin at, and whether the memories `now` and `next` are exchanged.
"""

ARRAYS = ("inputs", "initial", "final", "statics", "outputs", "kept", "reduced", "ended")
"""The kinds of arrays whose pointers follow the words, in order: what a call is given and gives, outputs that
are kept whole for what is made of all steps, and what is done in the end reads and gives.
"""
