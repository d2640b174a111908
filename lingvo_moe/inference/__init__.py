"""A trained model translates and scores."""
