"""Reviewed recordings: corrections of beats and events, families of beats, and the journal of a reviewer."""
