"""A recurrence, or layers of them, run one step at a time over rows that come and go.

    rows       0   1   2        in the order that the user sees
    slots      0   3   1        where a row's memory and statics lie, in all layers
    side       a   a   b        which of two memories of the slot is the present one

A step reads the memory of one side and writes that of the other. What rows there are, where they lie and on
which side is one value (`Moment`), which all layers share. Whatever is done to a stream writes to places that
nobody reads yet, and then replaces this value, by one assignment. So it is done in all layers or not at all,
also where it is interrupted. Rows that leave free their slots, and new ones take free slots.

`stream.py` has the interface; `prepared.py` and `called.py` run the steps of one layer.
"""
