"""Programs that a model wrote, run where they can do no harm.

``run.py`` chooses the strongest sandbox of this machine and runs one program in it; ``kinds.py`` says how
each is started. ``inside.py`` and ``namespaces.py`` are programs of their own, started inside: they import
nothing.
"""
