"""Split, Broadcast, Partial: which device holds what of a tensor, as an algebra."""
