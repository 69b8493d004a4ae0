"""Ways to run a handler: on the loop, in a thread, in a process, or as an external program."""
