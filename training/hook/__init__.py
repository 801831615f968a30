"""What a trainer imports at its start, without knowing it: by PYTHONPATH."""
