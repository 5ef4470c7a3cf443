"""Programs of a partition: run as many at once as there are cores, each different one once, and kept.

``runner.py`` looks up what is known, has the sandboxes run the rest, and keeps every outcome before it
counts; the stage ``execute`` enters there.
"""
