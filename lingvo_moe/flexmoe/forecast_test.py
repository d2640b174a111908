"""Forecasts by hand, and for loads with a known best average."""

import numpy as np

from lingvo_moe.flexmoe.forecast import Forecast


def follow(forecast, trace):
    seen = None
    for loads in trace:
        seen = forecast.update(seen, loads)
    return seen


def test_by_hand():
    forecast = Forecast(smoothing=(0.0, 0.75), memory=0.5)
    seen = follow(forecast, [np.full((2, 2), 100), np.full((2, 2), 200)])
    # 0.75 · 100 + 0.25 · 200; both were off by half of the tokens, and half of that counts.
    np.testing.assert_allclose(seen.averages[:, 0, 0], [200, 125])
    np.testing.assert_allclose(seen.errors, [0.25, 0.25])
    # The loads stay the same: the short average is right, the long one wrong by 75 of 200.
    seen = forecast.update(seen, np.full((2, 2), 200))
    np.testing.assert_allclose(seen.errors, [0.125, 0.125 + 0.5 * 75 / 200])
    np.testing.assert_allclose(forecast.loads(seen), 200)


def test_drift_is_followed_and_scatter_is_not():
    rng = np.random.default_rng(0)
    share = np.linspace(0.05, 0.2, 8)
    scattered = [rng.multinomial(500, share / share.sum(), size=4) for _ in range(60)]
    drifting = [share[None] * 1000 + 50 * step * np.eye(8)[:1] for step in range(60)]
    forecast = Forecast()
    assert follow(forecast, scattered).errors.argmin() >= 3
    assert follow(forecast, drifting).errors.argmin() == 0
    # For noisy loads the forecast is closer to the mean than the last loads are.
    mean = np.tile(500 * share / share.sum(), (4, 1))
    said, last = forecast.loads(follow(forecast, scattered)), scattered[-1]
    assert np.abs(said - mean).sum() < 0.5 * np.abs(last - mean).sum()
