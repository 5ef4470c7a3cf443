"""The command line of lm-evaluation-harness: its flags, read as it reads them, become evaluations of
``flows.eval``.

``arguments`` reads flags and config files, ``models`` makes an entry of ``models:`` of ``--model`` and
``--model_args``, ``benchmarks`` says what flags change in each benchmark, ``run`` evaluates. What has no
counterpart here is refused with what to do instead. Facts are those of lm-evaluation-harness 0.4.13.
"""
