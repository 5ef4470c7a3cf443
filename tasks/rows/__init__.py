"""Rows of one artifact made from those of the ones before: plain Python between the Prefect tasks and the
scorers."""
