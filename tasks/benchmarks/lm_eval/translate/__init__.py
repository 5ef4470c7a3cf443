"""Translates definitions of lm-evaluation-harness into native config keys, those of ``EvalConfig``; what has
no counterpart is refused by name. ``config`` is the entrance, for the config's reader.
"""
