"""What a finished run publishes: curves, model card, push to the Hub."""
