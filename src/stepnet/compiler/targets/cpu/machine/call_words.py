"""The arguments of machine code: 64-bit words for each thread of a call, and words that the threads share."""

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
"""The words that each call writes, together with the pointers of the user's arrays that follow them."""
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
"""The 64-bit words of a thread of a call, in order; the pointers of the user's arrays follow.

ahead: the pointer to the progress of the call whose outputs this call reads while both run; 0 for none.
until: the pointer to the words `ENDING`, if sequences may end early; 0 if they may not.
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
"""The words that are pointers to tables of integers: the tables that machine code writes, with an entry per
lane, per row of a block or per step of a block; then the tables that the call provides.
"""
PROGRESS = ("threads", "pause", "begin", "swapped", "reached")
"""The words of the progress of a call, which all its threads share.

threads: the number of threads; 0 until it is set.
pause: whether the threads return to Python after this block, to resume in a further call.
begin: the step at which they begin or resume.
swapped: whether the records "now" and "next" are exchanged.
reached: the step before which all outputs are written.
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

flag: the offset, in a lane's memories, of the bool that is set when its sequence has ended.
waiting: the pointer to the number of sequences that all sets together have begun, in the order of `order`.
sequences: the length of the table `order`.
most_steps, most_rows: the largest number of steps, and of rows, of a block.
room: the number of output rows for which there is memory; 0 if a sequence has one output row, its last.
taken: the pointer to the number of steps that each sequence took.
row_sequence, row_step: the pointers to the sequence, and to the step, of each output row.
written: the number of output rows written.
at_work: the number of lanes that run a sequence.
steps: the number of steps of the next block.
is_full: whether there is no memory for the outputs of the next block.
number: the number of the set.
"""
ENDLESS = 1 << 62
"""The number of steps given to a set of lanes that runs as long as sequences are waiting."""

ARRAYS = ("inputs", "initial", "final", "statics", "outputs", "kept", "reduced", "ended", "offsets")
"""The kinds of arrays whose pointers follow the words, in order.

inputs, initial, statics: the arrays of a call.
final, outputs: its results.
kept: outputs of all steps that are read after the loop.
reduced, ended: what the work after the last step reads, and what it computes.
offsets: the offsets of inner sequences.
"""
