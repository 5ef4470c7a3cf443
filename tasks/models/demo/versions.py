"""The embedded model's version, apart from the server so that reading it loads nothing."""

VERSION = 1
"""Enters cache keys: raise it when the model would answer anything differently."""
