"""From Python to a net: a step function called once on traced values."""
