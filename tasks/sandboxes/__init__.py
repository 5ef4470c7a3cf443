"""Programs that a model wrote, run where they can do no harm, and functions that may never return, called
where they can be ended.

``run.py`` chooses the strongest sandbox of this machine and runs one program in it. ``inside.py`` and
``namespaces.py`` are programs of their own, started inside: they import nothing. ``killable.py`` calls a
function of ours or of a user in a process with a limit for each item.
"""
