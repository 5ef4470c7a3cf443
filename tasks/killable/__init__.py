"""Calls of functions that may never return: in a process of their own, with a limit for each item.

``process.py`` starts the process, hands it items and ends it; ``child.py`` is what runs there. What is called
is named by module and function, so that it is imported there and its code is in the caller's keys.
"""
