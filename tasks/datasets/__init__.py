"""Datasets: rows of files, functions and hubs as items."""

from tasks.datasets.config import DatasetConfig
from tasks.datasets.items import check_source, content_digest, dataset_digest, open_dataset

__all__ = ["DatasetConfig", "check_source", "content_digest", "dataset_digest", "open_dataset"]
