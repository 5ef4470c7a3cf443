"""``python -m bench.evaluation``: a million responses scored, grouped and exported."""

import tempfile
from pathlib import Path

from bench.evaluation import exports, scale

for name, run, responses in (("scale", scale.main, 1_000_000), ("exports", exports.main, 200_000)):
    print(f"\n{name}")
    with tempfile.TemporaryDirectory() as folder:
        run(responses, Path(folder))
