"""What reports are made of: one table, one page, one way to draw."""
