"""Times stepnet beside other runtimes, in alternating turns, each in a process of its own."""
