"""``comparison.html``: one self-contained page about two runs. It reads the output folders of both runs and
joins their samples item by item. Entered by the comparison's command line and by suites.
"""
