"""A folder on disk for what takes long to compute: compiled code, and plans.

    settings   where it is, how large, whether it is used at all
    folder     the folder, which must be private to the user
    entry      the bytes of one file, with a checksum
    store      entries by key: read, written, evicted
    overview   what is there, for people
    data       values as bytes, and back
    sources    a digest of the code that values were computed with

What is read here is run as machine code. So an entry counts only if this user alone could have written it,
and no byte of it has changed. Everything else is as if it was not there: it is computed again.
"""
