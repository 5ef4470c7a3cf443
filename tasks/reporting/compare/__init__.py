"""``comparison.html``: one self-contained page about two runs.

``folder`` reads a run's output folder, ``join`` pairs the samples of both runs, ``write`` makes the page.
Entered by the comparison's command line.
"""
