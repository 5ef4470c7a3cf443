"""Metrics of log-likelihoods: accuracy over choices, perplexities, bits per byte. One family a module, as in
``metrics.text``. They are found through ``metrics.registry`` by name.
"""
