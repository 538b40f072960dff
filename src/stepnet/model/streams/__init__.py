"""A recurrence, or layers of them, run one step at a time over rows that come and go.

    rows       0   1   2        in the order that the user sees
    slots      0   3   1        where a row's memory and statics lie, in all layers
    side       a   a   b        which of two memories of the slot is the present one

A step reads the memory of one side and writes that of the other. The rows, their slots and their sides are
one value (`Moment`), which all layers share. Every operation on a stream writes to memory that the present
moment does not read, and then replaces the moment by one assignment. So an operation takes effect in all
layers or in none, even if it is interrupted. Rows that leave free their slots, and new rows take free slots.

`stream.py` has the interface; `prepared.py` and `called.py` run the steps of one layer.
"""
