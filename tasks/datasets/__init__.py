"""Datasets: rows of files, functions and hubs as items. Benchmarks and their checks enter by
``open_dataset``, cache keys by ``dataset_digest``.
"""

from tasks.datasets.config import DatasetConfig
from tasks.datasets.items import check_source, content_digest, dataset_digest, open_dataset

__all__ = ["DatasetConfig", "check_source", "content_digest", "dataset_digest", "open_dataset"]
