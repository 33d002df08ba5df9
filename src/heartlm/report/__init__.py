"""HTML reports and drawings."""
