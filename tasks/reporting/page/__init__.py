"""What the run's page and the comparison's page share: HTML, plots, the list of samples. Pure functions from
rows to text. Entered by ``tasks.reporting.report`` and ``tasks.reporting.compare``.
"""
