"""Split, Broadcast, Partial: an algebra of what each device holds of a tensor."""
