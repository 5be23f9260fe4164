"""The coordinator and its parts: the run of a job, its queue of candidates, cost models, checks of models, idle tuning."""
