"""Loops whose recurrent weights stay on the chip as operands of tensor cores."""
