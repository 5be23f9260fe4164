"""The worker's daemon around its state machine: leases, heartbeats, workloads."""
