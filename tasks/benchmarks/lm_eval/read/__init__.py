"""Reads YAML files of lm-evaluation-harness as definitions: includes, groups, tags, ``!function``. It neither
opens data nor renders. The translation and ``--tasks`` enter by ``select``.
"""
