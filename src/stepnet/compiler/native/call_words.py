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
    "part",
    "more_parts",
    "progress",
    "ahead",
    "barrier",
    "claims",
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
    "step_changes",
    "reverse",
    *CALL_WORDS,
)
"""The 64-bit words of a thread of a call, in order; the pointers of the user's arrays follow.

claims: the pointer to the words by which threads that share the steps claim work (`emit/claims.py`).
part, more_parts: the number of the part of the rows of each block that the thread computes, and the number of
    other parts, which threads that do not wait for it compute; 0 if it computes all rows.
ahead: the pointer to the progress of the call whose outputs this call reads while both run; 0 for none.
until: the pointer to the words `ENDING`, if sequences may end early; 0 if they may not.
"""
NUMBERS = (
    "thread",
    "part",
    "more_parts",
    "room",
    "lanes",
    "block_steps",
    "reverse",
    "slice",
    "last_only",
    "steps",
)
"""The words that are numbers; all others are pointers."""
ROW_TABLES = ("where", "owner", "fresh", "done", "put")
LANE_TABLES = ("cursor", "left", "current", "count", "ran", "inner_rows", "inner_first", "inner_count")
STEP_TABLES = ("step_base", "step_rows", "step_changes")
"""The words that are pointers to tables of integers which machine code writes: with an entry per lane, per
row of a block, and per step of a block.
"""
BEGINS, ENDS = 1, 2
"""The bits of an entry of `step_changes`: whether a sequence begins, or ends, in that step of the block."""
PROGRESS = ("threads", "pause", "begin", "swapped", "reached")
"""The words of the progress of a call, which all its threads share.

threads: the number of threads; 0 until it is set.
pause: whether the threads return to Python after this block, to resume in a further call.
begin: the step at which they begin or resume.
swapped: whether the records "now" and "next" are exchanged.
reached: the step before which all outputs are written.
"""
FRAME = (
    "block",
    "begin",
    "end",
    "now_bytes",
    "lane_bytes",
    "block_bytes",
    "index",
    "words",
    "now",
    "next",
    "threads",
    "waited",
    "steps",
)
"""The words of a thread that runs a call, on its stack. The functions that all plans share
(`emit/driver_code.py`) and those of a plan read and write them.

block, begin, end: the addresses of the plan's functions (`emit/block.py`).
now_bytes, lane_bytes, block_bytes: the bytes of a row of the plan's records "now", "lane" and "block".
index: the offset of the step's index in a row of the block; below 0 if steps do not read it.
words: the pointer to the words of the thread, as in `WORDS`.
now, next: the pointers to the memories before and after the next step.
threads: the number of threads that share the steps.
waited: the clock ticks that the thread has waited for others in this block.
steps: the number of steps of the block.
"""
PLAN_WORDS = FRAME[:7]
"""The words of `FRAME` that a plan determines."""
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
reduced, ended: the values that the work after the last step reads, and those that it computes.
offsets: the offsets of inner sequences.
"""
