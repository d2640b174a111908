"""Split, Broadcast, Partial: types that describe which part of a tensor each device holds."""
