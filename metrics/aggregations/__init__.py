"""From the statistics of all items to one number. Each aggregation says how its error is estimated; the
records come from ``metrics.registry`` by name. Entered by the aggregate stage, comparison and scorers.
"""
