"""Reads labelled texts from tables, folders and the Hub, and encodes texts of any length."""
