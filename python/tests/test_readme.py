# SPDX-License-Identifier: Apache-2.0
"""The README's Python examples run as they stand."""
import pathlib
import re

import pytest

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_example(library):
    pytest.importorskip(library)
    example, = [text for text in EXAMPLES if text.startswith(f"import {library}")]
    exec(compile(example, f"README.md, {library}", "exec"), {})
