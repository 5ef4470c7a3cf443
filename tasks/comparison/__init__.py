"""Two runs on the same items: what changed, by how much, and whether it is believable.

``runs`` opens what is compared, ``compare`` compares and applies the gate, ``trends`` looks back over nights.
Entered by ``flows.compare``, which shows the outcome, ``flows.suite`` and the comparison's page.
"""
