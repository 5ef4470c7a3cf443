"""What people see of a run: progress and tables in the terminal, exported files, pages.

All of it is made from the records of ``view``, read from the store or from a run's folder
(``compare``). Entered by publish and the command lines; no stage that computes imports it.
"""
