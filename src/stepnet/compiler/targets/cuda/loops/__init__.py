"""The kernels of the loops of plans, and the choice among them."""
