"""A model over folders of Parquet and Arrow files, into an output folder with the tree of the inputs.

    listing    lists the files that paths, folders and globs name
    tables     reads the schema, the parts and the rows of a file
    marks      metadata of a result that identifies model, options and input
    result_files    writes files that appear complete or not at all
    locks    keeps two processes from writing the same result
    plan       assigns parts of files to results, and finds results that exist
    sifting    runs rows, and separates those that cannot be run
    aside      the file of rows that are set aside, of this run and of the resumed one
    pipeline   reads, runs and writes at the same time
    request    checks the arguments of a run and lists its jobs
    running    `run`, its progress and its report

There is no journal: the results in the output folder record what is done. A result is written under another
name, and renamed when it is complete.
"""
