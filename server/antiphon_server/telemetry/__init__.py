"""What the server tells of itself: spans, metrics and one log line of each request."""
