"""The files of a run's output directory, each written as a stream and whole at any moment.

``responses.jsonl``            ``write_responses``           every sample's answer
``evaluation_results.jsonl``   ``write_evaluation_results``  every sample × label
``metrics.jsonl``              ``write_metrics``             every metric × label × facet group
``samples_<benchmark>.jsonl``  ``write_samples``             every item × filter, in the harness's shape
``results.json``               ``write_results``             the run's numbers, in the harness's shape
``results.parquet``            ``write_results_table``       the same numbers with everything known about them
``items.parquet``              ``write_items_table``         what the numbers rest on: one row an item
"""

from tasks.reporting.exports.inputs import AnswerPart, RunInfo, SamplePart
from tasks.reporting.exports.responses import write_evaluation_results, write_metrics, write_responses
from tasks.reporting.exports.results import (
    results_document,
    write_items_table,
    write_results,
    write_results_table,
)
from tasks.reporting.exports.samples import write_samples
from tasks.store.files import write_lines
from tasks.verdicts.rows import JudgedPart, method_labels

__all__ = [
    "AnswerPart",
    "JudgedPart",
    "RunInfo",
    "SamplePart",
    "method_labels",
    "results_document",
    "write_evaluation_results",
    "write_items_table",
    "write_lines",
    "write_metrics",
    "write_responses",
    "write_results",
    "write_results_table",
    "write_samples",
]
