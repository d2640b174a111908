"""An HTTP server that translates requests of many users in batches."""
