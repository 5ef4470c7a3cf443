"""Model servers on this machine: started with a folder of weights, watched, and ended whatever happens.

``config.py`` is what a model's ``serve:`` says, with the servers known by name; ``weights.py`` which model a
folder holds, by content, and the adapter over it. ``launch.py`` makes the command, ``servers.py`` starts and
ends a server through ``supervisor.py``, a process of its own, and ends what a crash left.
"""
