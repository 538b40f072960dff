"""Files of pickles, PyTorch's and Paddle's, read without running anything that they name."""
