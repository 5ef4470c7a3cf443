"""``report.html``: one self-contained page about one run.

``write.write_report`` is the entry; ``select`` chooses the samples that are shown, ``context`` and ``curves``
make what the template needs. Entered by publish; the comparison's page reuses the writer and the limits.
"""
