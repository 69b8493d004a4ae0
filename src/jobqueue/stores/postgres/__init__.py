"""Implement a store of jobs in PostgreSQL, which any number of servers may share.

A job that has not ended has a live row of its own (in job_live), or is plain: it shares a row with
others. Plain jobs that are PENDING, with consecutive numbers, share a range (in job_ready). Plain
jobs that one claim has ASSIGNED to one worker share a held row (in job_held).
"""
