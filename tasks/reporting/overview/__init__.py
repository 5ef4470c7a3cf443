"""All runs of a store at a glance: what each came to, who leads, and what was changed from one to the next.

``runs`` reads them from the history, ``page`` writes ``index.html`` of them. The command line of the history
and the stage publish enter here.
"""
