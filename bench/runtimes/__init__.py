"""stepnet beside other runtimes, in turns, each in a process of its own."""
