"""What the run's page and the comparison's page share: HTML without network, plots, the list of samples.

Every function turns records of ``tasks.reporting.view`` into text or positions and writes no file. Entered by
``tasks.reporting.report`` and ``tasks.reporting.compare``.
"""
