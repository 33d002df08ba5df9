"""Commands of this extension: each parses its arguments, calls the extension and prints."""
