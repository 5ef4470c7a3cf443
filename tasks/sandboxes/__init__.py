"""Programs that a model wrote, run where they can do no harm, and functions that may never return, called
where they can be ended.

``run.py`` chooses the strongest sandbox of this machine (``kinds.py``: bubblewrap or a container engine) and
runs one program in it. ``judge.py`` is a program of its own outside of the sandbox that imports nothing: it
starts the program and keeps its clock and limits. ``killable.py`` calls a function of ours or of a user in
a process with a limit for each item.
"""
