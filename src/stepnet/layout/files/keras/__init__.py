"""Keras' files: .keras, .weights.h5, .h5 of Keras 1 to 3, and the HDF5 they lie in."""
