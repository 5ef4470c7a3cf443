"""Answers, kept one by one under their request keys. An answer goes to a journal on local disk the moment it
arrives, and from there to a segment of the store; the next run finds both. ``respond`` enters; nobody else
reads segments.
"""
