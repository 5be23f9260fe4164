"""What moves jobs along: the coordinator, the run of a job, its candidates, its cost model, idle tuning."""
