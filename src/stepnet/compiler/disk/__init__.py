"""The cache on disk for values that take long to compute: compiled code, and plans.

    settings   the folder, the size limit, and whether the cache is used
    folder     opens the folder and checks that it is private to the user
    entry      the format of one file, with a checksum
    store      reads, writes and evicts entries by key
    overview   the contents of the cache, for the command line
    data       serialization of values
    sources    a digest of the code that computed the values

Compiled code in the cache is run. So an entry is valid only if no other user could have written it and its
checksum is right. An invalid entry is treated as missing: the value is computed again.
"""
