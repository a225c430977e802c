# SPDX-License-Identifier: Apache-2.0
"""A fresh seed for each test, printed when it fails; FLASHATTN_TEST_SEED repeats it. Results are poisoned beforehand."""
import os
import secrets

import numpy as np
import pytest

from flashattn import _arrays


@pytest.fixture
def rng():
    seed = int(os.environ.get("FLASHATTN_TEST_SEED") or secrets.randbits(32))
    print(f"FLASHATTN_TEST_SEED={seed}")  # pytest shows it for a failing test
    return np.random.default_rng(seed)


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """New arrays hold NaN, so that an element that is not written shows."""
    for kind in (_arrays.NumPy, _arrays.Torch):
        def empty(self, x, shape, name=None, original=kind.empty):
            array = original(self, x, shape, name)
            if "float" in str(array.dtype):
                array[...] = float("nan")
            return array
        monkeypatch.setattr(kind, "empty", empty)
