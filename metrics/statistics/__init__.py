"""How far a number can be trusted: standard errors, intervals, tests, gates. Pure functions of arrays; every
random generator is seeded by its caller. Entered by aggregate, comparison and judges' calibration.
"""
