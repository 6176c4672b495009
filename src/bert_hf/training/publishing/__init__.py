"""Model card and push to the Hub."""
