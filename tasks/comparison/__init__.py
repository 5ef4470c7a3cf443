"""Two runs on the same items: what changed, by how much, and whether it is believable.

``runs`` opens what is compared, ``compare`` compares and applies the gate, ``presentation`` turns the outcome
into a table, sentences or JSON, ``trends`` looks back over nights. Entered by ``flows.compare``,
``flows.suite`` and the comparison's page.
"""
