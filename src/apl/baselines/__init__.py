"""Published methods to compare with, one per file."""
