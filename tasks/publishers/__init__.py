"""Where a run's numbers go besides its own folder: one module a destination, which ``publish:`` names."""

from tasks.publishers.config import ExportForm, PublishConfig
from tasks.publishers.publisher import FinishedRun, Publisher

__all__ = ["ExportForm", "FinishedRun", "PublishConfig", "Publisher"]
