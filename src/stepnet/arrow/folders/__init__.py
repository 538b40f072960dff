"""A model over folders of Parquet and Arrow files, into a folder of the same tree.

    listing    the files that paths, folders and globs name
    tables     a file of either kind: its schema, its parts, and its rows chunk by chunk
    marks      what a result says of its origin: model, options, input
    targets    files that appear whole or not at all
    plan       which result is made of which part of which file, and which are there already
    sifting    the results of a chunk, and the rows that have none
    earlier    rows that an earlier run set aside
    aside      rows that are set aside, in a file of their own
    pipeline   reading, running and writing at the same time
    request    the arguments of a run, checked, and the results that it is to make
    summary    what a run did, and how far it is
    running    `run`

There is no journal: the results that are there are the record of what is done. Each is written under
another name, and renamed when it is whole.
"""
