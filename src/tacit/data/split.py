"""Train, validation and test: the first thing that happens to the records of a silo.

The split is a random permutation of row numbers, drawn from the seed and the number of records alone. It
never looks at a record. In particular it is not stratified: a stratified split makes the *size* of a class in
the training set a function of the labels of the held-out records, and under replace-one adjacency one changed
label would move other records across the split, which no accountant of the training algorithm covers.
"""

from __future__ import annotations

import numpy as np

from tacit.data.federation import DataError


def split_sizes(records: int, validation: float, test: float) -> tuple[int, int, int]:
    """Sizes of train, validation and test.

    Training gets ``floor(records * (1 - validation - test))``; what is held out is shared in proportion.

    >>> split_sizes(1543, 0.1, 0.1)
    (1234, 155, 154)
    >>> split_sizes(2064, 0.1, 0.1)
    (1651, 207, 206)
    >>> split_sizes(10, 0.0, 0.0)
    (10, 0, 0)
    """
    for name, value in (("validation", validation), ("test", test)):
        if not 0 <= value < 1:
            raise DataError(f"Expected 0 <= {name}={value} < 1: it is the share of a silo's records; try {name}=0.1.")
    if not validation + test < 1:
        raise DataError(
            f"Expected validation={validation} + test={test} < 1, or nothing is left to train on; lower one of them."
        )
    # The nudge keeps shares such as 0.7 * 10, which is 6.999... in floating point, from losing a record.
    train = int(np.floor(records * (1 - validation - test) + 1e-9))
    held = records - train
    held_for_test = round(held * test / (validation + test)) if validation + test > 0 else 0
    return (records, 0, 0) if validation + test == 0 else (train, held - held_for_test, held_for_test)


def split_indices(
    records: int, validation: float, test: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row numbers of train, validation and test: disjoint, together all of ``range(records)``."""
    train, held_for_validation, _ = split_sizes(records, validation, test)
    order = generator.permutation(records)
    return order[:train], order[train : train + held_for_validation], order[train + held_for_validation :]
