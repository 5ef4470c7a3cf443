"""The pipeline's stages as Prefect tasks, and the plain Python below them.

The only layer with input and output.
"""
