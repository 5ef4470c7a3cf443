"""``comparison.html``: one self-contained page about two runs.

``folder`` reads a run's output folder, ``write`` pairs the samples of both runs and makes the page.
Entered by the comparison's command line.
"""
