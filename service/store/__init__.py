"""What the service remembers: one module per noun. Functions take an open session first; the caller commits.

Locks are taken in one order, so that no two transactions wait for each other: lease, worker, job, candidates, fence.
"""
