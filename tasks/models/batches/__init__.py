"""Batches: requests that a provider takes as one job and answers within hours, at a lower price.

``form`` says what a provider's interface for them is; ``openai``, ``anthropic``, ``gemini`` and ``files``
are those that exist. ``records`` keeps the jobs and their replies in the store. ``tasks.models.jobs`` is the
life of a job.
"""
