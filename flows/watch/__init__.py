"""The watch, ``python -m flows.watch``: looks every minute at what no run can tell of itself, and tells it.

It asks the server for states and listens to no events. ``look`` finds what is wrong, ``mend`` takes lost runs
again and ends dead ones, ``nights`` sends what nights have not told, ``memory`` knows what was told before.
"""
