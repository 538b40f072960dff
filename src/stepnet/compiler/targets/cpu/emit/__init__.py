"""The machine code of each kind of loop, and of a whole call."""
