"""The pipeline as one graph: each stage is declared once, and code that has to know the stages reads the
declarations. ``stage`` says what a declaration is, ``stages`` holds all of them, ``forecast`` follows them
without running anything, ``preview`` says what asking would take. The flow submits from them.
"""
