"""All runs of a store as one dataset that answers SQL, and the pruning of what no run needs."""
