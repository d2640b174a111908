"""The one fit of measured times: seconds as a sum of amounts times rates."""

import numpy as np


def fit_rates(amounts: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, float]:
    """Rates by least squares of relative errors, none below 0.

    A kind that the measurements cannot tell from those before it has the rate 0.

    Args:
        amounts: [n, kinds], such as messages and bytes of each of n measurements.
        seconds: [n], what each took.

    Returns:
        Seconds per unit of each kind, [kinds], and the largest relative error.
    """
    relative = amounts / seconds[:, None]
    rates, used = np.zeros(amounts.shape[1]), []
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
