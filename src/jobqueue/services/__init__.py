"""The parts of the task queue document: single owners of jobs, order and results, and the two that
carry out its protocols over them. Each part is a plain class; whether its neighbours are objects
of the same process or clients of another one, it cannot tell."""
