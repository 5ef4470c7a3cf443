"""The content-addressed store: references, keys, the program's code in them, schemas, and the steps whose
results it keeps.
"""
