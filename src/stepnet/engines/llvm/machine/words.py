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
    "ran",
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

ahead: the progress of the call whose outputs this one reads while both run; 0 for none. until: where the
words `ENDING` are, of a call whose sequences may end early; 0 for others.
"""
ROW_TABLES = ("where", "owner", "fresh", "done", "put")
LANE_TABLES = ("cursor", "left", "current", "count", "ran", "inner_rows", "inner_first", "inner_count")
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
PROGRESS = ("threads", "pause", "begin", "swapped", "reached")
"""The words that say how far a call is, the same for all its threads: how many there are (0 until that is
known), whether they pause, the step to begin at, whether the memories `now` and `next` are exchanged, and
before which step all outputs are written.
"""
ENDING = (
    "flag",
    "waiting",
    "sequences",
    "most_steps",
    "most_rows",
    "room",
    "taken",
    "row_sequence",
    "row_step",
    "written",
    "at_work",
    "steps",
    "is_full",
    "number",
)
"""The words of a set of lanes whose sequences may end early.

flag: where in a lane's memories the bool is that says that its sequence has ended. waiting: the pointer to
how many sequences have been taken from the table `order`, by all sets. sequences: how many it has.
most_steps, most_rows: of a block. room: for how many rows of outputs there is memory; 0 where a sequence has
one row, its last. taken: the pointer to how many steps each sequence took. row_sequence, row_step: the
pointers to which step of which sequence each row of the outputs is. written: how many of these rows are
written. at_work: how many lanes have a sequence. steps: of the next block. is_full: whether there is no room
for the outputs of that. number: of the set.
"""
ENDLESS = 1 << 62
"""The steps of a set of lanes that take sequences as long as some are waiting."""

ARRAYS = ("inputs", "initial", "final", "statics", "outputs", "kept", "reduced", "ended", "offsets")
"""The kinds of arrays whose pointers follow the words, in order: what a call is given and gives, outputs that
are kept whole for what is made of all steps, what is done in the end reads and gives, and the offsets of
inner sequences.
"""
