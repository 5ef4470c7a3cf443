"""Filters: named chains of steps that prepare responses for comparison, and never score.

One function per step, in a module of its kind; ``pipeline.py`` strings them together.
"""

from scorers.filters.pipeline import FILTERS, FilterDefinition, FilterPipeline, filter_step

__all__ = ["FILTERS", "FilterDefinition", "FilterPipeline", "filter_step"]
