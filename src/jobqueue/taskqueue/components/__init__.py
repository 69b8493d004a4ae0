"""The parts of the task queue document: three single owners, of jobs, order and results, and the
Gateway and the Coordinator, which carry out its protocols over them.

Each part is a plain class. It cannot tell whether its neighbours are objects of the same process or
clients of another one.
"""
