"""Benchmarks: the items of a dataset, and what is asked of a model about each. The load and render stages,
the preflight and the forecast enter by ``open.open_benchmark`` and know only the protocol in
``tasks.datasets.item``.
"""
