# SPDX-License-Identifier: Apache-2.0
"""Arguments of others that this library has no counterpart for."""


def refuse(**arguments):
    """Raises NotImplementedError for the first argument that is not at its default. name=(value, default)"""
    for name, (value, default) in arguments.items():
        if value is not default and (default is None or value != default):
            shown = f" = {value}" if isinstance(value, (int, float, bool, str, tuple)) else ""
            raise NotImplementedError(f"{name}{shown}: must be {default}, nothing else is supported")
