"""ATen operations, which are PyTorch's own, on values of a net: one table, by which traces of PyTorch and
files of torch.export are read as nets. Nothing here imports PyTorch.
"""
