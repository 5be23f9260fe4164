"""Schedules for GPUs that need no trial: which kernels a workload becomes, and how its iterations meet threads."""
