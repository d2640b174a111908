"""Fits measured times: seconds are a sum of amounts times rates."""

import numpy as np


def fit_rates(amounts: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, float]:
    """Rates, not negative, by least squares of relative errors.

    A kind whose amounts depend linearly on those of earlier kinds gets the rate 0.

    Args:
        amounts: [n, kinds], such as messages and bytes of each of n measurements.
        seconds: [n], the measured times.

    Returns:
        Seconds per unit of each kind, [kinds], and the largest relative error.
    """
    relative = amounts / seconds[:, None]
    rates = np.zeros(amounts.shape[1])
    used: list[int] = []
    for kind in range(amounts.shape[1]):
        if np.linalg.matrix_rank(relative[:, [*used, kind]]) > len(used):
            used.append(kind)
    while used:
        rates[:] = 0.0
        rates[used] = np.linalg.lstsq(relative[:, used], np.ones(len(seconds)))[0]
        if rates.min() >= 0:
            break
        used.remove(int(rates.argmin()))
    return rates, float(np.abs(relative @ rates - 1).max())
