"""Evaluation methods, metrics over what they said, and recorded responses: plain Python, no Prefect."""
