"""Metrics that compare texts, one family a module. A module's code is in the cache key of every score that it
made, so two families never share one. They are found through ``metrics.registry`` by name.
"""
