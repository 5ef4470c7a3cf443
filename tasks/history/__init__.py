"""All runs of a store as one dataset that answers SQL, and the removal of what no run needs.

``layout`` says where things lie and adds runs and nights, ``query`` answers, ``prune`` removes. Entered by
publish, the comparison, suites and ``python -m flows.history``.
"""
