"""Functions that users write in files of their own, loaded by name.

``load`` finds ``file.py:function`` beside a config and makes the file's folder importable while it loads.
Files written for lm-evaluation-harness import ``datasets``, installed or not: ``surroundings`` gives them a
module of that name with its tables, and the harness's seeds. ``sources`` says what a function depends on: the
files that its imports lead to (``files``), and what it was seen to read (``observed``). Readers of configs
and stages enter.
"""
