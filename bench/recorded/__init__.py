"""Logs of other programs, written by those programs: the fixtures that tests of ``--from-…`` read."""
