"""Model servers on this machine: started with a folder of weights, watched, and ended whatever happens.

``config.py`` is what a model's ``serve:`` says, with the servers known by name, and which model a folder
holds, by content. ``launch.py`` makes the command, ``servers.py`` starts and ends a server through
``supervisor.py``, a process of its own, and ends what a crash left.
"""
