"""The hash function of keys and checksums.

The module `hashlib` loads OpenSSL, which takes as long as to read a stored model; Python has this function in
a module of its own.
"""

try:
    from _blake2 import blake2b
except ImportError:  # a Python that has it elsewhere
    from hashlib import blake2b

__all__ = ["blake2b", "digest_of_texts"]


def digest_of_texts(*texts: str | bytes) -> str:
    """Computes a digest of texts, of which none can be taken for a part of another: 32 hexadecimal digits.

    >>> digest_of_texts("ab") == digest_of_texts("a", "b")
    False
    """
    hasher = blake2b(digest_size=16)
    for text in texts:
        chunk = text if isinstance(text, bytes) else text.encode()
        hasher.update(len(chunk).to_bytes(8, "little"))
        hasher.update(chunk)
    return hasher.hexdigest()
