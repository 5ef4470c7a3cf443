"""What bounds asking: ``limiters`` says how many requests are in flight and go out a minute, ``allowances``
what endpoints say is left of their rates, ``spending`` what a run has used and may use. The engine enters.
"""
