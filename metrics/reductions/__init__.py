"""From the repeats of one item to one row. A reduction is a plain function of an item's scores, or a closed
formula over counts such as pass@k; the records come from ``metrics.registry`` by name. Entered by the
reduce stage.
"""
