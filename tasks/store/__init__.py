"""The content-addressed store: references, keys, fingerprints of code, schemas, and the steps whose
results it keeps.
"""
