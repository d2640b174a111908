"""Studies that are not part of the package: they are not installed, and nothing imports them."""
