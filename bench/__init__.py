"""Benchmarks of stepnet: beside other runtimes (`python -m bench`), and the scripts that README.md lists."""
