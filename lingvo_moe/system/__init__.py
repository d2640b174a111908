"""Files that appear whole, locks, lines of text, progress: what needs only the operating system."""
