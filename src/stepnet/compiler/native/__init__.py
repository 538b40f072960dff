"""The system and the processor, and calls ready to run: all that running machine code needs, and no more.

    pages     memory of the system, executable where it holds code
    system    the functions of the system that machine code calls
    identity  the processor, as a key under which code for it is stored
    frozen    a call with its machine code and all that this reads, as bytes that any process can run

Nothing here knows a net, a plan or an engine: a process that runs a stored call imports none of these.
"""
