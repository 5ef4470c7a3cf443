"""``report.html``: one self-contained page about one run. ``write_report`` is the door; the rest chooses the
samples that are shown and makes what the template needs. Entered by the publish stage.
"""
