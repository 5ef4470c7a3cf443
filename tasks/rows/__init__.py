"""Rows of one artifact from the rows of the artifacts before it.

Each module serves one kind of stage: ``items`` load and render, ``turns`` conversations, ``predictions``
filter, ``execution`` the stage that runs programs, ``scoring`` the stages that score, with ``limited``
where that may take for ever, ``parts`` the stages of one pair, those that reduce and publish. Stages enter
here, and the packages above; nothing here opens a store of its own or asks a model.
"""
