"""How a call is described to machine code: a row of 64-bit words for each thread, and what all share."""

CALL_WORDS = (
    "slice",
    "last_only",
    "sequence",
    "begun",
    "until",
    "steps",
    "order",
    "first",
    "lane_steps",
    "starts",
    "lengths",
    "step_offsets",
)
"""The words that each call writes anew, together with the pointers behind them."""
WORDS = (
    "thread",
    "progress",
    "ahead",
    "barrier",
    "rest",
    "clock",
    "status",
    "constants",
    "now",
    "next",
    "lane",
    "block",
    "nowhere",
    "words",
    "kept_words",
    "inner_now",
    "inner_next",
    "inner_lane",
    "room",
    "lanes",
    "block_steps",
    "cursor",
    "left",
    "current",
    "count",
    "inner_rows",
    "inner_first",
    "inner_count",
    "where",
    "owner",
    "fresh",
    "done",
    "put",
    "step_base",
    "step_rows",
    "step_fresh",
    "reverse",
    *CALL_WORDS,
)
"""The 64-bit words that a call is described by, in order; the pointers of the user's arrays follow.

ahead: the progress of the call whose outputs this one reads while both run; 0 for none.
"""
ROW_TABLES = ("where", "owner", "fresh", "done", "put")
LANE_TABLES = ("cursor", "left", "current", "count", "inner_rows", "inner_first", "inner_count")
STEP_TABLES = ("step_base", "step_rows", "step_fresh")
TABLES = (
    *LANE_TABLES,
    *ROW_TABLES,
    *STEP_TABLES,
    "begun",
    "order",
    "first",
    "lane_steps",
    "starts",
    "lengths",
    "step_offsets",
)
"""The words that are pointers to tables of numbers: those of the machine code by lane, by row of a block and
by step of a block; and those of the call.
"""
PROGRESS = ("threads", "pause", "begin", "swapped", "over", "reached")
"""The words that say how far a call is, the same for all its threads: how many there are (0 until that is
known), whether they pause, the step to begin at, whether the memories `now` and `next` are exchanged,
whether the call is over ahead of its last step, and before which step all outputs are written.
"""

ARRAYS = ("inputs", "initial", "final", "statics", "outputs", "kept", "reduced", "ended", "offsets")
"""The kinds of arrays whose pointers follow the words, in order: what a call is given and gives, outputs that
are kept whole for what is made of all steps, what is done in the end reads and gives, and the offsets of
inner sequences.
"""
