"""What a workload is: its digest, its least FLOPs and bytes, the bound of its time; and the tasks of a model."""
