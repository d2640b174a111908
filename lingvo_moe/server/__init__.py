"""A server: HTTP requests of many users, joined into batches."""
