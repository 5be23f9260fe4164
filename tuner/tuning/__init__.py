"""The tuning of one job: rounds of searching and measuring, the budget, the confirming run, records."""
