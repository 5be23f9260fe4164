"""How schedules are written down and applied: traces, rewrites of workloads that they name, weights packed once."""
