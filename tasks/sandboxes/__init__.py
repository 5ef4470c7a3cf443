"""Programs that a model wrote, run where they can do no harm, and functions that may never return, called
where they can be ended.

``run.py`` chooses the strongest sandbox of this machine (bubblewrap or a container engine) and runs one
program in it. ``inside.py`` is a program of its own, started inside: it imports nothing. ``killable.py``
calls a function of ours or of a user in a process with a limit for each item.
"""
