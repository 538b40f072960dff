"""The hash function of keys and checksums.

The module `hashlib` loads OpenSSL, which takes as long as to read a stored model; Python has this function in
a module of its own.
"""

try:
    from _blake2 import blake2b
except ImportError:  # a Python that has it elsewhere
    from hashlib import blake2b

__all__ = ["blake2b"]
