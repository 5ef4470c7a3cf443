"""Rows of one artifact from the rows of the artifacts before it.

Each module serves one kind of stage: ``items`` load and render, ``predictions`` filter, ``scoring`` the
stages that score, ``parts`` those that reduce and publish. Stages enter here, and the packages above; nothing
here opens a store or asks a model.
"""
