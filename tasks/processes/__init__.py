"""Processes beside the run's own: ``workers`` keeps them warm and gives them whole steps, ``garbage`` says
how often any of the project's processes looks for cycles, ``endings`` what ends with a process that Ctrl-C
ends. Stages and commands enter.
"""
