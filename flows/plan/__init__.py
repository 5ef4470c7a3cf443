"""Every step of a run and its identity, decided before anything starts. ``build`` makes the plan from a
config, ``steps`` holds its records, ``forecast`` says what a run would ask and compute. Entered by the
flow, the command line's ``--dry-run`` and suites.
"""
