"""The content-addressed store: references, keys, fingerprints of code, schemas."""
