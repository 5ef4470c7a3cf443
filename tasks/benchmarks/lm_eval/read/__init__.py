"""From YAML files of lm-evaluation-harness to definitions: includes, groups, tags, ``!function``. Reads and
validates, and neither opens data nor renders. Entered by the translation and by ``--tasks``.
"""
