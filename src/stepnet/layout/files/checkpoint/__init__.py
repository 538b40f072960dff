"""TensorFlow's checkpoints of versions 1 and 2, and the tables they lie in."""
