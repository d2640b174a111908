"""Tables, pages and figures of all reports."""
