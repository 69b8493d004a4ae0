"""Implement the parts of the task queue: classes that the services and the nodes share.

``JobLedger`` keeps the jobs, ``ReadyQueue`` the order of the waiting jobs, and ``ResultShelf`` the
results, all in memory. ``Gateway`` serves clients and ``Coordinator`` serves workers; both call the
three other parts. Each part is a plain class. A part cannot tell whether another part is an object
of the same process or a client of another process.
"""
